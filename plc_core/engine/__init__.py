"""How log-probs are made and weights move; it knows `objective`, `data` and `runs`.

pipeline         `train`: a run from its parameters (`config`) and `training_pairs` to its folder
trainer          the loop; `visits` records it, `checkpoints` is what it goes on from, if
                 `checkpoint_files` finds it whole
tokens           of pairs, by the model's chat template
forward          packed rows and the log-probs of their responses
reference        log-probs of the reference, computed once and kept
models           what is trained, and where it comes from
row_sources      pairs by name, and the embedded world's samples
sampling         answers of a policy
stages           what comes before: SFT and the reward model; `world_sft` makes the world's model
trl_adapter      the objectives inside TRL's trainer; `trl_record` is its run folder
"""
