"""Parameter lists of the kernels in a .cu file, read from its text, so that a launch is checked on any machine.

Kernels are written `extern "C" __global__ void name(...)`, or made by a macro whose body has that form and which is
applied by name or by FOR_EACH_STORAGE of kernels/device.cuh. Nothing here knows a compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcgnn.errors import KernelError

# What FOR_EACH_STORAGE of kernels/device.cuh applies a macro to.
STORAGE_ARGUMENTS = (("float", "f32"), ("__nv_bfloat16", "bf16"), ("__half", "f16"))

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)$", re.MULTILINE)
_FOR_EACH = re.compile(r"\bFOR_EACH_STORAGE\s*\(\s*(\w+)\s*\)")
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')
_PARAMETER = re.compile(r"^(const\s+)?(\w+)\s*(\*?)\s*(const\s+)?(?:__restrict__\s+)?(\w+)$")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: `type` is the pointee's where it is a pointer."""

    name: str
    type: str
    is_pointer: bool
    is_const: bool

    def __str__(self) -> str:
        return f"{'const ' if self.is_const else ''}{self.type} {'*' if self.is_pointer else ''}{self.name}"


def signatures_of(source: str) -> dict[str, tuple[Parameter, ...]]:
    """Parameters of every kernel in the text of a .cu file, by the kernel's name.

    Raises
    ------
    KernelError      a parameter that is neither `type name` nor `[const] type *[__restrict__] name`
    """
    text = re.sub(r"\\\n", " ", _COMMENT.sub(" ", source))
    return {name: _parameters_of(name, parameters) for name, parameters in _KERNEL.findall(_expand(text))}


def _expand(text: str) -> str:
    """Return the text without directives, with the macros that make kernels applied, also inside of one another."""
    macros = {name: ([word.strip() for word in words.split(",")], body) for name, words, body in _MACRO.findall(text)}
    makers = {name for name, (_, body) in macros.items() if "__global__" in body}
    makers |= {name for name, (_, body) in macros.items() if any(re.search(rf"\b{made}\(", body) for made in makers)}
    code, before = _DIRECTIVE.sub("", text), None
    while code != before:
        before = code
        code = _FOR_EACH.sub(lambda match: " ".join(f"{match[1]}({', '.join(words)})" for words in STORAGE_ARGUMENTS),
                             code)
        for name in makers:
            code = re.sub(rf"\b{name}\s*\(([^()]*)\)", lambda match, made=macros[name]: _apply(*made, match[1]), code)
    return code


def _apply(words: list[str], body: str, arguments: str) -> str:
    for word, argument in zip(words, arguments.split(","), strict=True):
        body = re.sub(rf"\b{word}\b", argument.strip(), body)
    return re.sub(r"\s*##\s*", "", body)


def _parameters_of(kernel: str, text: str) -> tuple[Parameter, ...]:
    written = [" ".join(word.split()) for word in text.split(",") if word.strip()]
    matches = [_PARAMETER.match(word) for word in written]
    for word, match in zip(written, matches, strict=True):
        if match is None:
            raise KernelError(f"kernel {kernel} has a parameter {word!r}, which is neither a number nor a pointer")
    return tuple(Parameter(match[5], match[2], bool(match[3]), bool(match[1])) for match in matches)
