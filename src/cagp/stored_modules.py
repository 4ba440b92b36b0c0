"""Kernels, means, noises and likelihoods as states, bit for bit: names, plain arguments, tensors, nothing executable.

A class of this package is made again from its name, its plain arguments and the modules inside it. Of a class of your
own the tensors and the plain attributes are stored; a module of the same structure must be given to read it.
"""

import copy
import inspect
from typing import Any, TypeVar

import torch
from torch import nn

from cagp import fields
from cagp.fields import Fields, checked, flag, is_finite, list_of, strange, text
from cagp.parameters import Positive
from cagp.storage import State

Module = TypeVar("Module", bound=nn.Module)

NAMED: Fields = {"class": text, "own": flag, "tensors": fields.tensors}
OWN: Fields = {"attributes": fields.dict_of(fields.anything)}


def _stored(state: Any, sizes: fields.Sizes | None = None) -> State:
    """The state of a module after its checks, and those of the modules inside it."""
    named = checked(state, NAMED)
    return named | checked(state, OWN if named["own"] else OURS)


OURS: Fields = {
    "settings": fields.dict_of(fields.anything),
    "buffers": fields.tensors,
    "floors": fields.dict_of(fields.real(above=-1e-300)),
    "parts": list_of(_stored),
}


def module_state(module: nn.Module) -> State:
    """The class, its plain arguments, floors and raw parameters of a module, and the same of the modules inside it."""
    name, own = type(module).__name__, not _is_ours(type(module))
    if own:
        return {"class": name, "own": own, "tensors": dict(module.state_dict()), "attributes": _attributes(module)}
    return {
        "class": name,
        "own": own,
        "tensors": dict(module.named_parameters(recurse=False)),
        "settings": getattr(module, "plain_arguments", dict)(),
        "buffers": dict(module.named_buffers(recurse=False)),
        "floors": {name: float(value) for name, value in vars(module).items() if name.endswith("_floor")},
        "parts": [module_state(part) for part in _parts(module)],
    }


def module_from_state(state: Any, role: type[Module], given: Module | None = None) -> Module:
    """The module of a state, e.g. a ``Kernel``; one of the same structure must be ``given`` for classes of your own."""
    stored = _stored(state)
    if given is not None:
        words, expected = _words(module_state(given)), _words(stored)
        if words != expected:
            raise ValueError(
                f"{role.__name__.lower()} is {words}, the stored one is {expected}; give one of the same structure."
            )
    elif own := _own_classes(stored):
        raise ValueError(
            f"the stored kernel is {_words(stored)}, and {own[0]} is a class of your own, whose code is not stored; "
            f"give a kernel of the same structure: cagp.load(path, kernel={_words(stored)})."
        )
    return _made(stored, role, given)


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("cagp.")


def _classes(role: type[Module]) -> dict[str, type[Module]]:
    """The classes of this package that play a role, by their names."""
    own = {role.__name__: role} if _is_ours(role) and not inspect.isabstract(role) else {}
    return own | {name: kind for child in role.__subclasses__() for name, kind in _classes(child).items()}


def _parts(module: Any) -> list[nn.Module]:
    return getattr(module, "subkernels", list)()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module and of those inside it, which together with its tensors define it."""
    return {
        f"{path}.{name}" if path else name: value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float | str) and name != "training" and not name.startswith("_")
    }


def _words(stored: State) -> str:
    """The structure of a kernel, like "Scale(MyKernel(...))"."""
    return f"{stored['class']}({', '.join(map(_words, stored.get('parts', []))) or '...'})"


def _own_classes(stored: State) -> list[str]:
    return [stored["class"]] if stored["own"] else [name for part in stored["parts"] for name in _own_classes(part)]


@torch.no_grad()
def _made(stored: State, role: type[Module], given: Any) -> Module:
    if stored["own"]:
        return _copied(given, stored)
    insides = [None] * len(stored["parts"]) if given is None else _parts(given)
    parts = [_made(part, role, inside) for part, inside in zip(stored["parts"], insides, strict=True)]
    module = _with_default_values(stored, role, parts)
    _check_shapes(stored, dict((module if given is None else given).named_parameters(recurse=False)))
    for name, floor in stored["floors"].items():
        if not isinstance(getattr(type(module), name.removesuffix("_floor"), None), Positive) or floor < 0:
            raise strange(repr(name))
        setattr(module, name, floor)
    for name, tensor in stored["tensors"].items():
        floor = stored["floors"].get(f"{name.removeprefix('raw_')}_floor", 0.0)
        values = tensor.exp() + floor if name.startswith("raw_") else tensor
        is_positive = bool((values > 0).all()) or not name.startswith("raw_")
        if tensor.dtype != torch.float64 or not is_finite(tensor) or not is_finite(values) or not is_positive:
            raise strange(repr(name))
        module.get_parameter(name).copy_(tensor)
    buffers = dict(module.named_buffers(recurse=False))
    if buffers.keys() != stored["buffers"].keys():
        raise strange(f"the buffers of a {stored['class']}")
    for name, values in stored["buffers"].items():
        is_same = values.shape == buffers[name].shape and values.dtype == torch.float64 and is_finite(values)
        if not is_same or (name == "unit" and not bool((values > 0).all())):
            raise strange(repr(name))
        buffers[name].copy_(values)
    return module


def _with_default_values(stored: State, role: type[Module], parts: list[Any]) -> Module:
    """A module with the sizes of the stored tensors."""
    kind = _classes(role).get(stored["class"])
    if kind is None:
        raise strange(f"a {role.__name__.lower()} of a known class")
    size = max((values.numel() for values in stored["tensors"].values()), default=0)
    try:
        if not parts and stored["settings"].get("num_dims", size) != size:  # nothing larger than the file is made
            raise ValueError("num_dims differs from the stored tensors.")
        module = kind(*parts, **stored["settings"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise strange(f"the settings of a {stored['class']}") from error
    if len(_parts(module)) != len(parts):
        raise strange(f"the parts of a {stored['class']}")
    return module


def _copied(given: Any, stored: State) -> Any:
    """A copy of a module of your own with the stored parameters."""
    attributes, wanted = _attributes(given), stored["attributes"]
    _check_shapes(stored, given.state_dict())
    for name in sorted(attributes.keys() | wanted.keys()):
        if attributes.get(name) != wanted.get(name):
            raise ValueError(
                f"the stored {stored['class']} has {name} = {wanted.get(name)!r}, the one given "
                f"{attributes.get(name)!r}; give one that was made with the same arguments."
            )
    if not all(map(is_finite, stored["tensors"].values())):
        raise strange(f"finite parameters of {stored['class']}")
    module = copy.deepcopy(given)
    module.load_state_dict(stored["tensors"])
    return module


def _check_shapes(stored: State, expected: dict[str, Any]) -> None:
    given, found = ({k: tuple(t.shape) for k, t in group.items()} for group in (expected, stored["tensors"]))
    if given != found:
        raise ValueError(f"the stored {stored['class']} has tensors of shapes {found}, the one given {given}.")
