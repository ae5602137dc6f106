"""The proof of a profile: `observing.py` asks an engine, `comparing.py` compares two engines'
answers, `running.py` starts the engines and makes the `ProfileProof`."""
