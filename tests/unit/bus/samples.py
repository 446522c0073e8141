"""A filled-in value of any message struct, made from its types alone: the same one on every machine and release."""

from __future__ import annotations

from types import ModuleType

import msgspec
from msgspec import inspect

from tensorcast_bus import envelope, errors, manifest, messages, notes

MODULES: tuple[ModuleType, ...] = (envelope, errors, manifest, messages, notes)


def message_structs() -> dict[str, type[msgspec.Struct]]:
    """Every struct that crosses a process boundary as MessagePack, by "module.Name"."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }


def sample(struct: type[msgspec.Struct]) -> msgspec.Struct:
    """Every field filled, none with its default."""
    shape = inspect.type_info(struct)
    assert isinstance(shape, inspect.StructType)
    return struct(*(_value(field.type, field.name) for field in shape.fields))


def _value(shape: inspect.Type, name: str) -> object:
    match shape:
        case inspect.StrType():
            return f"{name}-ä"
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return (1 << 40) + len(name)
        case inspect.FloatType():
            return 1.5
        case inspect.BytesType():
            return b"\x00\xff" + name.encode()
        case inspect.RawType():
            return msgspec.Raw(msgspec.msgpack.encode([name, 7]))
        case inspect.VarTupleType() | inspect.ListType():
            items = [_value(shape.item_type, name), _value(shape.item_type, name + "2")]
            return tuple(items) if isinstance(shape, inspect.VarTupleType) else items
        case inspect.TupleType():
            return tuple(_value(item, f"{name}{place}") for place, item in enumerate(shape.item_types))
        case inspect.DictType():
            return {"k": _value(shape.value_type, name)}
        case inspect.StructType():
            return sample(shape.cls)
        case inspect.UnionType():
            return _value(next(kind for kind in shape.types if not isinstance(kind, inspect.NoneType)), name)
    raise AssertionError(f"no sample for a field {name} of {shape}")
