"""The program: its commands, and the handling that they share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import (
    bench,
    compile,
    devices,
    farm,
    inspect,
    isa,
    journal,
    lab,
    models,
    package,
    predict,
    probe,
    profile,
    run,
    tune,
)
from .options import with_common_options
from .output import print_json_error, state
from .text import folded

_EXAMPLES = """
[bold]From a network to a checked module[/bold]
  tvmflow models build mobilenet_v2 -o mobilenet_v2.onnx
  tvmflow compile mobilenet_v2.onnx --target opencl -o mobilenet_v2.so
  tvmflow verify mobilenet_v2.onnx mobilenet_v2.so
  tvmflow bench mobilenet_v2.so --kernels

[bold]Exit status[/bold]
  0    done
  1    results beyond the tolerance, or an error inside tvmflow
  2    a mistake in the input or the environment; the message says what to do
  130  stopped with Ctrl-C; no partial files remain
"""


class _Folded:
    """Help whose epilog is folded to the width of the terminal."""

    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the folded epilog."""
        text = self.epilog
        # Rich leaves a column of space at each side.
        self.epilog = text and folded(text, shutil.get_terminal_size().columns - 2)
        super().format_help(ctx, formatter)  # type: ignore[misc]
        self.epilog = text


class Command(_Folded, TyperCommand):
    """A command."""


class Group(_Folded, TyperGroup):
    """A command that has subcommands."""


class Program(Group):
    """The program, which prints errors of the command line as JSON if ``--json`` is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the program's own options, and note whether ``--json`` is given."""
        ctx.meta["json"] = "--json" in args
        with _usage_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _usage_errors(ctx):
            return super().invoke(ctx)


@contextmanager
def _usage_errors(ctx: Any) -> Iterator[None]:
    """Print a usage error as JSON, before typer prints it as text."""
    try:
        yield
    except Exception as error:
        # The class is click's; newer releases of typer have a copy of it.
        if ctx.meta["json"] and hasattr(error, "format_message"):
            state.json = True
            status = int(getattr(error, "exit_code", 2))
            print_json_error("UsageError", str(error.format_message()), None, None, status)
            state.reset()
        raise


app = typer.Typer(
    name="tvmflow",
    cls=Program,
    epilog=_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .._versions import REQUIRED_TVM, __version__

        parts = ", ".join(f"{name} {version}" for name, version in REQUIRED_TVM.items())
        typer.echo(f"tvmflow {__version__} ({parts})")
        raise typer.Exit


@app.callback()
@with_common_options
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True),
        "Print the versions and exit.",
    ] = False,
) -> None:
    """Compile ONNX networks to modules that run on OpenCL, CUDA and CPUs."""


app.command("compile", epilog=compile.COMPILE_EXAMPLES)(compile.compile_model)
app.command("run", epilog=run.RUN_EXAMPLES)(run.run_module)
app.command("bench", epilog=bench.EXAMPLES)(bench.bench_module)
app.command("profile", epilog=profile.EXAMPLES)(profile.profile_module)
app.command("verify", epilog=run.VERIFY_EXAMPLES)(run.verify_module)
app.command("isa", epilog=isa.EXAMPLES)(isa.machine_code_of_module)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.inspect_module)
app.command("schedules", epilog=lab.SCHEDULES_EXAMPLES)(lab.list_families)
app.command("lab", epilog=lab.LAB_EXAMPLES)(lab.run_lab)
app.command("tasks", epilog=tune.TASKS_EXAMPLES)(tune.list_tasks)
app.command("tune", epilog=tune.TUNE_EXAMPLES)(tune.tune_model)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict_time)
app.command("precompile", epilog=compile.PRECOMPILE_EXAMPLES)(compile.precompile_library)
app.command("package", epilog=package.EXAMPLES)(package.package_libraries)
app.command("devices", epilog=devices.EXAMPLES)(devices.list_all)
app.command("probe", epilog=probe.EXAMPLES)(probe.probe_device)
app.add_typer(models.app, name="models", cls=Group)
app.add_typer(journal.app, name="journal", cls=Group)
app.add_typer(farm.app, name="farm", cls=Group)
for each in (app, models.app, journal.app, farm.app):
    for registered in each.registered_commands:
        registered.cls = Command
