"""Decodes with llama.cpp's libraries opened RTLD_LOCAL through ctypes, as scripting languages do, and writes the logits of
every position and step as float32, as llama-run does.

  python3 decode.py LIBRARIES LLAMA_H MODEL LOGITS
"""
import ctypes
import glob
import math
import os
import re
import sys

PROMPT, STEPS = 40, 16


def structure(header, name):
    """A structure of llama.h as ctypes has it: made from the header, so that every release's is right."""
    body = re.search(r"struct %s \{(.*?)\n    \}" % name, header, re.S).group(1)
    scalars = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "float": ctypes.c_float, "bool": ctypes.c_bool,
               "size_t": ctypes.c_size_t}
    fields = []
    for declaration in re.sub(r"//[^\n]*", "", body).split(";"):
        if not declaration.strip():
            continue
        kind, field = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", declaration, re.S).groups()
        if "*" in kind or kind.endswith("callback"):
            fields.append((field, ctypes.c_void_p))
        elif kind.startswith("enum "):
            fields.append((field, ctypes.c_int))
        else:
            fields.append((field, scalars[kind]))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def library(directory, name):
    [path] = glob.glob(os.path.join(directory, "lib%s.*.so" % name))
    return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)


class Llama:
    def __init__(self, directory, header):
        self.model_params = structure(header, "llama_model_params")
        self.context_params = structure(header, "llama_context_params")
        self.batch = structure(header, "llama_batch")
        self.ggml, self.llama = library(directory, "ggml"), library(directory, "llama")
        pointer, integer = ctypes.c_void_p, ctypes.c_int32
        for name, result, arguments in [
            ("llama_model_default_params", self.model_params, []),
            ("llama_context_default_params", self.context_params, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, self.model_params]),
            ("llama_init_from_model", pointer, [pointer, self.context_params]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", integer, [pointer]),
            ("llama_batch_init", self.batch, [integer, integer, integer]),
            ("llama_batch_free", None, [self.batch]),
            ("llama_decode", integer, [pointer, self.batch]),
            ("llama_get_logits_ith", pointer, [pointer, integer]),
            ("llama_free", None, [pointer]),
            ("llama_model_free", None, [pointer]),
        ]:
            function = getattr(self.llama, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.ggml.ggml_backend_load_all_from_path(directory.encode())


def decode(llama, context, n_vocab, tokens, first, file):
    """Adds these tokens' logits to the file; returns the best token after the last."""
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    integers = ctypes.POINTER(ctypes.c_int32)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        ctypes.cast(batch.token, integers)[i] = token
        ctypes.cast(batch.pos, integers)[i] = first + i
        ctypes.cast(batch.n_seq_id, integers)[i] = 1
        ctypes.cast(batch.seq_id, ctypes.POINTER(integers))[i][0] = 0
        ctypes.cast(batch.logits, ctypes.POINTER(ctypes.c_int8))[i] = 1
    if llama.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")
    for i in range(len(tokens)):
        row = (ctypes.c_float * n_vocab).from_address(llama.llama_get_logits_ith(context, i))
        if len(set(row)) < n_vocab // 2 or not all(map(math.isfinite, row)):
            sys.exit("these logits prove nothing: they are all alike, or not finite")
        file.write(bytes(row))
    llama.llama_batch_free(batch)
    return max(range(n_vocab), key=lambda v: row[v])


def main(directory, header, model_path, logits_path):
    with open(header) as text:
        llama = Llama(directory, text.read())
    params = llama.llama_model_default_params()
    params.split_mode = 3  # tensor
    model = llama.llama_model_load_from_file(model_path.encode(), params) or sys.exit("no model")
    params = llama.llama_context_default_params()
    if params.flash_attn_type != -1 or params.n_ctx != 512:
        sys.exit("llama.h and the library differ: flash attention %d, context %d" % (params.flash_attn_type, params.n_ctx))
    params.flash_attn_type = 1  # on
    params.n_ctx, params.n_batch, params.n_ubatch = PROMPT + STEPS, PROMPT, PROMPT
    params.n_threads = params.n_threads_batch = 1
    context = llama.llama_init_from_model(model, params) or sys.exit("no context")
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    with open(logits_path, "wb") as file:
        token = decode(llama, context, n_vocab, [(i * 389 + 17) % n_vocab for i in range(PROMPT)], 0, file)
        for step in range(STEPS):
            token = decode(llama, context, n_vocab, [token], PROMPT + step, file)
    llama.llama_free(context)
    llama.llama_model_free(model)


main(*sys.argv[1:])
