"""Evaluation: generate answers to held-out questions, score them, say how sure the accuracy is.

* `questions`: the held-out split, as the model will be asked
* `answering`: the answers that a model gave before, and those it is still to give
* `generate_transformers`, `generate_vllm`: the back-ends that generate; `sampling` is what they share
* `samples`: answers as JSONL, and the journal that lets a killed evaluation go on
* `scoring`, `metrics`: scores of answers, accuracy and what goes with it
* `stage`: the rule's work, from settings to manifest
* `rescore`: the same from kept answers, without a model
"""
