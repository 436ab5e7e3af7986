"""A device that computes and is not the CPU, for machines that have no other.

Its tensors say that they are on torch's meta device, and hold their numbers in one of the CPU.
An operation that mixes one of them with an ordinary tensor raises RuntimeError, as CUDA does; a
single number (a tensor of no dimension) may be mixed, as with CUDA.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A tensor on the other device."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(),
            dtype=inside.dtype, device=DEVICE, requires_grad=inside.requires_grad,
        )  # fmt: skip

    def __init__(self, inside):
        self.inside = inside

    @property
    def data(self):
        """As torch's; what is set brings its numbers along."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.inside = value.inside

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return _compute(function, arguments, options or {})


def _compute(function, arguments, options):
    """The operation on the tensors inside; RuntimeError if it mixes the two devices."""
    given = [one for one in tree_flatten((arguments, options))[0] if isinstance(one, torch.Tensor)]
    moves = function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    at_home = [one for one in given if not isinstance(one, Elsewhere) and one.ndim]
    away_from_home = [one for one in given if isinstance(one, Elsewhere)]
    if at_home and away_from_home and not moves:
        raise RuntimeError(
            f"{function}: {len(at_home)} of {len(given)} tensors were left on the CPU"
        )
    wanted = options.get("device")
    away = (
        given and isinstance(given[0], Elsewhere)
        if wanted is None
        else torch.device(wanted) == DEVICE
    )
    options = options | ({} if wanted is None else {"device": torch.device("cpu")})
    inside = lambda one: one.inside if isinstance(one, Elsewhere) else one  # noqa: E731
    made = function(*tree_map(inside, arguments), **tree_map(inside, options))
    back = {
        id(one.inside): one for one in given if isinstance(one, Elsewhere)
    }  # in-place operations

    def wrapped(one):
        if not isinstance(one, torch.Tensor):
            return one
        return back.get(id(one)) if id(one) in back else (Elsewhere(one) if away else one)

    return tree_map(wrapped, made)


class _PastTheDispatcher(TorchFunctionMode):
    """What does not pass through the dispatcher: `torch.tensor(numbers, device="meta")` is made at
    home and moved, and `tolist` reads the numbers.
    """

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is torch.tensor and torch.device(options.get("device") or "cpu") == DEVICE:
            return Elsewhere(function(*arguments, **options | {"device": "cpu"}))
        if function is torch.Tensor.tolist and isinstance(arguments[0], Elsewhere):
            return arguments[0].inside.tolist()
        return function(*arguments, **options)


class OtherDevice(TorchDispatchMode):
    """Inside it, `device="meta"` is the other device, also for tensors that are made there."""

    def __enter__(self):
        self.beside = _PastTheDispatcher()
        self.beside.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.beside.__exit__(*error)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return _compute(function, arguments, options or {})


def moved(value):
    """Tensors, in any nesting of dictionaries and named tuples, on the other device."""
    return tree_map(
        lambda one: (
            Elsewhere(one.detach().clone()).requires_grad_(one.requires_grad)
            if isinstance(one, torch.Tensor)
            else one
        ),
        value,
    )


def move_model(model):
    """The model with its parameters and buffers on the other device, in place; a tensor that two
    modules share stays one.
    """
    known = {}

    def there(tensor):
        if id(tensor) not in known:
            inside = Elsewhere(tensor.detach().clone())
            is_weight = isinstance(tensor, torch.nn.Parameter)
            known[id(tensor)] = (
                torch.nn.Parameter(inside, tensor.requires_grad) if is_weight else inside
            )
        return known[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, Elsewhere):
                    tensors[name] = there(tensor)
    return model
