"""SGLang's start with a given launch profile, followed in its source.

The server's arguments are completed by the source's own ``ServerArgs.__post_init__``; the model runner is then followed
through its constructor, which sets up process groups and communicators and chooses kernels.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from abi_checks.checks.contracts.classes import members
from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.source import Place, SourceTree
from abi_checks.checks.contracts.statements import Enough, Write
from abi_checks.checks.contracts.values import (
    ClassRef,
    Construction,
    EnumMember,
    Exit,
    Function,
    Instance,
    Raised,
    Unknown,
    Value,
)
from abi_checks.checks.contracts.world import Target
from abi_checks.errors import UsageError

ARGUMENTS = ("sglang.srt.server_args", "ServerArgs")
MODEL_CONFIG = ("sglang.srt.configs.model_config", "ModelConfig")
RUNNER = ("sglang.srt.model_executor.model_runner", "ModelRunner")


def parse_option(text: str) -> tuple[str, bool | int | float | str]:
    """``--attention-backend=fa3``, or the same without dashes or value → the ServerArgs name and its value.

    Raises UsageError where the text is no option.
    """
    name, _, value = text.partition("=")
    field = name.strip().lstrip("-").replace("-", "_")
    if not field.isidentifier():
        raise UsageError(f"{name!r} is no launch option; write it as attention-backend=flashinfer")
    field = {"tp": "tp_size", "tensor_parallel_size": "tp_size"}.get(field, field)
    if value in ("", "true", "True"):
        return field, True
    for kind in (int, float):
        try:
            return field, kind(value)
        except ValueError:
            continue
    return field, value


@dataclass(frozen=True, slots=True)
class Profile:
    """A launch: the model class served, the target, and the options that are given, by their ServerArgs names."""

    model: str
    target: Target
    options: tuple[tuple[str, Value], ...]

    def without(self, name: str) -> Profile:
        """The same launch with one option left out."""
        return Profile(self.model, self.target, tuple(o for o in self.options if o[0] != name))


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a launch cannot be followed: the source has moved."""

    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """What became of a launch.

    ``state`` is the interpreter's at the end. ``effective`` holds the completed arguments, ``writes`` where they were
    set; ``stopped`` is the exception that ends the completion of the arguments, ``crashed`` the one that ends the model
    runner's constructor.
    """

    interpreter: Interpreter
    state: Mapping[tuple[int, str], Value]
    arguments: Instance
    model_config: Instance
    effective: Mapping[str, Value]
    writes: tuple[Write, ...]
    stopped: Raised | None
    crashed: Raised | None
    constructed: tuple[Construction, ...]

    def last_write(self, name: str) -> Write | None:
        """The assignment that gave an argument its final value."""
        value = self.effective.get(name)
        own = [w for w in self.writes if w.name == name]
        return next(
            (w for w in reversed(own) if type(w.value) is type(value) and w.value == value), own[-1] if own else None
        )


def option_names(tree: SourceTree) -> dict[str, Place]:
    """The fields of ``ServerArgs``, each with its line; empty where the class is not where it was."""
    module = tree.module(ARGUMENTS[0])
    node = module.classes.get(ARGUMENTS[1]) if module else None
    if module is None or node is None:
        return {}
    fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    return {s.target.id: module.place(s) for s in fields if isinstance(s.target, ast.Name)}


def complete_arguments(interpreter: Interpreter, profile: Profile) -> Start | Missing:
    """Follow ``ServerArgs.__post_init__`` for a profile, from a fresh state, on the interpreter's target."""
    interpreter.state = {}
    arguments_class = _class(interpreter, ARGUMENTS)
    config_class = _class(interpreter, MODEL_CONFIG)
    for found in (arguments_class, config_class):
        if isinstance(found, Missing):
            return found
    assert isinstance(arguments_class, ClassRef) and isinstance(config_class, ClassRef)
    config = _model_config(interpreter, config_class, profile.model)
    arguments = Instance(interpreter.number(), arguments_class)
    for name, statement in members(arguments_class.node).items():
        if isinstance(statement, ast.AnnAssign):
            interpreter.state[arguments.number, name] = interpreter.class_value(arguments_class, name)
    given = {"model_path": "MODEL", "tp_size": profile.target.gpus, **dict(profile.options), "model_config": config}
    interpreter.state.update({(arguments.number, name): value for name, value in given.items()})
    method = interpreter.attribute(
        arguments, "__post_init__", ast.Pass(), interpreter.module_frame(arguments_class.module)
    )
    if not isinstance(method, Function):
        return Missing(f"{ARGUMENTS[1]} has no __post_init__ in {arguments_class.module.path}")
    interpreter.writes.clear()
    last = interpreter.ways_out(method, (), {})[-1]
    interpreter.state = last.state
    effective = {name: value for (number, name), value in last.state.items() if number == arguments.number}
    writes = tuple(w for w in interpreter.writes if w.owner == arguments.number)
    state = dict(last.state)
    return Start(interpreter, state, arguments, config, effective, writes, _certain_raise(last), None, ())


def start(begun: Start, until: frozenset[str] = frozenset()) -> Start | Missing:
    """Go on from completed arguments through the model runner's constructor, or to the end of a method in ``until``."""
    interpreter = begun.interpreter
    interpreter.state = dict(begun.state)
    runner_class = _class(interpreter, RUNNER)
    if isinstance(runner_class, Missing):
        return runner_class
    runner = Instance(interpreter.number(), runner_class)
    method = interpreter.attribute(runner, "__init__", ast.Pass(), interpreter.module_frame(runner_class.module))
    if not isinstance(method, Function):
        return Missing(f"{RUNNER[1]} has no constructor in {runner_class.module.path}")
    methods = [m for c in interpreter.classes.lineage(runner_class).order for m in members(c.node).items()]
    interpreter.stop_after = frozenset(id(node) for name, node in methods if name in until)
    interpreter.constructed.clear()
    crashed = None
    try:
        last = interpreter.ways_out(method, (), _runner_arguments(method, begun))[-1]
        interpreter.state, crashed = last.state, _certain_raise(last)
    except Enough:
        pass
    finally:
        interpreter.stop_after = frozenset()
    return replace(begun, state=interpreter.state, crashed=crashed, constructed=tuple(interpreter.constructed))


def publish_arguments(begun: Start) -> None:
    """From the start's state, let the source's own setters hand the arguments to code that asks for them globally."""
    begun.interpreter.state = dict(begun.state)
    arguments = begun.arguments.cls
    assert arguments is not None
    for node in arguments.module.tree.body:
        if (
            isinstance(node, ast.FunctionDef)
            and len(node.args.args) == 1
            and any(isinstance(n, ast.Global) for n in node.body)
        ):
            begun.interpreter.run_function(Function(arguments.module, node), (begun.arguments,), {})


def _runner_arguments(method: Function, begun: Start) -> dict[str, Value]:
    """Rank 0 of one group over all GPUs; sizes are those of the completed arguments."""
    named: dict[str, Value] = {}
    for argument in method.node.args.args:
        name = argument.arg
        if name == "server_args":
            named[name] = begun.arguments
        elif name == "model_config":
            named[name] = begun.model_config
        elif name == "gpu_id" or name.endswith("_rank"):
            named[name] = 0
        elif name in begun.effective:
            named[name] = begun.effective[name]
        elif name.removeprefix("moe_") in begun.effective:
            named[name] = begun.effective[name.removeprefix("moe_")]
    return named


def _certain_raise(last: Exit) -> Raised | None:
    return last.value if last.kind == "raise" and last.certain and isinstance(last.value, Raised) else None


def _class(interpreter: Interpreter, address: tuple[str, str]) -> ClassRef | Missing:
    found = interpreter.member(*address)
    if isinstance(found, ClassRef):
        return found
    reason = found.reason if isinstance(found, Unknown) else f"{address[1]} is no class"
    return Missing(f"{'.'.join(address)} cannot be followed: {reason}")


def _model_config(interpreter: Interpreter, cls: ClassRef, model: str) -> Instance:
    """A model configuration of which only the class name is known, with what the source derives from that name."""
    config, hub = Instance(interpreter.number(), cls), Instance(interpreter.number())
    interpreter.state[hub.number, "architectures"] = [model]
    interpreter.state[config.number, "hf_config"] = hub
    derive = interpreter.attribute(config, "_derive_model_shapes", ast.Pass(), interpreter.module_frame(cls.module))
    if isinstance(derive, Function):
        interpreter.state = interpreter.ways_out(derive, (), {})[-1].state
    return config


def runner_stub(begun: Start) -> Instance:
    """An object with the attributes of a model runner that kernels are chosen by."""
    interpreter = begun.interpreter
    runner = Instance(interpreter.number())
    arch = interpreter.state.get((begun.model_config.number, "attention_arch"))
    mla = arch.name == "MLA" if isinstance(arch, EnumMember) else Unknown("the attention architecture is not known")
    values: dict[str, Value] = {
        "server_args": begun.arguments,
        "model_config": begun.model_config,
        "use_mla_backend": mla,
    }
    interpreter.state.update({(runner.number, name): value for name, value in values.items()})
    return runner


def decorated_with(tree: SourceTree, module_name: str, argument: str) -> Sequence[Function]:
    """Functions of a module under a decorator that is called with this text, such as ``@register("fa3")``."""
    module = tree.module(module_name)
    if module is None:
        return ()
    return [
        Function(module, node)
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and any(isinstance(a, ast.Constant) and a.value == argument for a in decorator.args)
    ]
