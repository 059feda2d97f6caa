"""The report of a run: reads files only, knows nothing of what made them.

* `reading`: the run's files, each either whole or a clear error
* `comparison`: base against final on the same questions, and the verdict
* `curves`, `charts`: which metrics are drawn, and curves as SVG
* `timeline`: the ledger as one drawing
* `memory_view`: the forecast of memory beside what was measured
* `parity`: verl's last validation against the evaluation
* `signs`: what should make a reader careful
* `samples_view`, `provenance_view`: what the page shows of samples and provenance
* `page`: assembly of the HTML
* `summaries`: metrics.json, summary.md
* `model_card`: the Hugging Face model card
* `crate`: the RO-Crate
* `stage`: the rules' work: `report` and its partial form
* `runs_table`: the comparison of all runs
"""
