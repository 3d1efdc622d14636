"""Typed frames of the data path, one file per receiving process: `tokenizer`, `scheduler`, `http`.

Each file ends with a union; `ipc.codec` encodes it as version byte + msgpack. A message lives here
rather than in `ipc.messages` because it uses the engine's vocabulary (SamplingParams, Rejection,
TrafficClass).
"""
