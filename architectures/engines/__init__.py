"""What each engine demands of a draft and its target, told before anything is served: `widedraft preflight`. No torch.

Facts are read from configs and tokenizer files; rules are pure functions of them, one file for each engine. table.py
says in which version each engine's were read, and which engines were run.
"""
