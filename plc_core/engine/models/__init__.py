"""What is trained, and where it comes from.

load             a policy or a tokenizer, by folder, name or package
adapters         LoRA
packaged_models  real models from the package index, read and never installed
model_files      whether what lies there is what was written, or what a run began from
"""
