"""Replay: streams of single frames, and samplers that build stacks and n-step returns when a batch is drawn."""
