"""Evaluation: generate answers to held-out questions, score them, say how sure the accuracy is.

* `questions`: the held-out split, as the model will be asked
* `generate_transformers`: the back-end that generates with transformers
* `samples`: answers as JSONL, and the journal that lets a killed evaluation go on
* `metrics`: accuracy and what goes with it
* `stage`: the rule's work, from settings to manifest
"""
