"""Engines of others, from the package index, in this process. They need the extra `engines`.

llama_cpp, openvino_genai: an engine each, see `resispec.engines.Engine`. gguf_file: the format in which both
read a pair. openvino_reproduction, openvino_law: what OpenVINO GenAI emits with a draft model, on a
vocabulary small enough to count, and which algorithm emits that.
"""
