"""The stages before preference training: they lean on TRL.

sft, reward_model
                 the two stages; `common` is what both do
conversations    what SFT reads
reward_scoring   rewards of answers by a reward model
"""
