"""How log-probs are made and weights move; it knows `objective`, `data` and `runs`.

pipeline         `train`: a run from its parameters (`config`) and pairs to its folder
trainer          the loop; `visits` records it, `checkpoints` is what it goes on from
tokens           of pairs, by `templates`, `encoding` and `token_cache`
packing, logprobs, pair_attention, vocabulary
                 packed rows and the log-probs of their responses
reference        log-probs of the reference, computed once and kept
models, adapters, packaged_models
                 what is trained, and where it comes from
sources          pairs by name, and the embedded world's samples
sampling         answers of a policy
sft, reward_model, world_sft
                 the stages before; `conversations`, `stages` and `reward_scoring` serve them
trl_adapter      the objectives inside TRL's trainer; `trl_record` is its run folder
"""
