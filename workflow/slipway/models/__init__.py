"""What a model is: dimensions read from `config.json`, names of tensors, where a model's files are."""
