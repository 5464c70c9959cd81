"""The command `plc`: train, audit labels, batches of notebooks, the inspector, the demo.

`plc COMMAND --help` says more. Relative paths start at the checkout, or where the package was
installed from a wheel at the working directory.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from plc_core.environment import environment, plain_streams
from plc_core.interrupts import handling, leave
from plc_core.storage.files import RunError
from plc_core.storage.paths import importable, resource


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    plain_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="plc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = "\n".join(f"  {name:<10}{_summary(run)}" for name, run in COMMANDS.items())
    parser.usage = f"plc COMMAND [options]\n\ncommands:\n{commands}"
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    known = parser.parse_args(given[:1])
    try:
        return COMMANDS[known.command](given[1:])
    except RunError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def train(arguments: Sequence[str]) -> int:
    """one training run, from a YAML file of parameters"""
    parser = argparse.ArgumentParser(
        prog="plc train",
        usage="plc train FILE [-p NAME VALUE …]",
        description="Train a policy as FILE says, a YAML file of what differs from the defaults; "
        "the run folder gets a report. Several runs at a time: plc batch.",
        # Read for those who ask: it takes a second.
        epilog=_parameters() if {"-h", "--help"} & set(arguments) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter that differs from FILE",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    changes = [word for pair in given.p for word in ("-p", *pair)]
    return batch(["01_train", "-f", str(given.file), *changes])


def batch(arguments: Sequence[str]) -> int:
    """a notebook with parameters: one run, a list of jobs, a grid, on Ray"""
    from plc_core.batch.__main__ import main as run

    return run(arguments)


def audit(arguments: Sequence[str]) -> int:
    """which preference labels are wrong, how many, and why"""
    parser = argparse.ArgumentParser(
        prog="plc audit",
        usage="plc audit FILE [--model MODEL] [--policy POLICY] [options]",
        description="How likely each label of FILE is reversed, judged by the labels of its other "
        "prompts: a run folder that the inspector opens, an HTML report and audit.parquet. "
        "Hidden states of a model are the best evidence; without one, words and lengths remain.",
    )
    parser.add_argument("file", metavar="FILE", help="pairs, or the name of a public dataset")
    parser.add_argument("--model", help="a local folder, or a name on the hub")
    parser.add_argument("--policy", choices=["flip", "drop", "weight", "prior"],
                        help="write the pairs with labels turned, left out, weighted or with "
                        "a prior each")  # fmt: skip
    parser.add_argument("--export", metavar="FILE", help="where to; .jsonl or .parquet")
    parser.add_argument("--by", nargs="+", metavar="COLUMN",
                        help="columns for noise rates; p_flip has one for each group of the first",
                        )  # fmt: skip
    parser.add_argument("--run", help="a finished training run on these pairs, as evidence")
    parser.add_argument("--name", help="of the audit; default: audit-FILE")
    parser.add_argument("--runs", default="runs", metavar="DIRECTORY", help="default: runs")
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="any other parameter of notebooks/audit.ipynb, as num_pairs 1000 for the first rows, "
        "max_length 256 for shorter texts (a CPU reads them faster), or data_columns "
        "'{prompt: question, chosen: good, rejected: bad}' for columns of other names",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    importable()
    from notebooks.audit_command import run_audit  # loads libraries, after --help

    return run_audit(given)


def app(arguments: Sequence[str]) -> int:
    """the inspector, in a browser"""
    parser = argparse.ArgumentParser(prog="plc app", description="Open the inspector.")
    parser.add_argument("--runs", default="runs", metavar="DIRECTORY", help="default: runs")
    parser.add_argument("--port", type=int, help="default: the first free one from 8501 on")
    given = parser.parse_args(arguments)
    words = ["--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"]
    if given.port is not None:
        words += ["--server.port", str(given.port)]
    script = str(resource("app") / "inspector.py")
    return _python("streamlit", "run", script, *words, "--", "--runs", given.runs)


def lab(arguments: Sequence[str]) -> int:
    """JupyterLab on the notebooks"""
    parser = argparse.ArgumentParser(
        prog="plc lab", description="Open JupyterLab; its own options may follow."
    )
    _, others = parser.parse_known_args(arguments)
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    folder = str(resource("notebooks"))
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), importable())))
    with environment({"PYTHONPATH": path}):
        return _python("jupyterlab", "--ip", "127.0.0.1", *root, *others, folder)


def demo(arguments: Sequence[str]) -> int:
    """three policies on reversed labels, a table and a report, in minutes"""
    from plc_core.demo import main as run

    return run(arguments)


def paper(arguments: Sequence[str]) -> int:
    """every notebook of the paper's tables, once, on the embedded world"""
    importable()
    from notebooks.make_paper import main as run

    argparse.ArgumentParser(prog="plc paper", description=_summary(paper)).parse_args(arguments)
    return run()


def evidence(arguments: Sequence[str]) -> int:
    """the table of claims: what of the paper holds, from the CSV files"""
    importable()
    from notebooks.evidence.__main__ import main as run

    return run(list(arguments))


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "audit": audit,
    "batch": batch,
    "app": app,
    "lab": lab,
    "demo": demo,
    "paper": paper,
    "evidence": evidence,
}


def _summary(command: Callable[..., int]) -> str:
    return (command.__doc__ or "").strip()


_AS_MODULE = """
import runpy, sys
from plc_core.interrupts import leave_at_once
leave_at_once()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""As `python -m`, but that a signal while the module is imported is no traceback."""


def _python(*words: str) -> int:
    """Run a module in a process of its own; its exit status, or 130 or 143 after a signal.

    Ctrl-C reaches that process too, which may ask back; SIGTERM is passed on to it.
    """
    process: subprocess.Popen[bytes] | None = None
    asked = 0

    def passed_on(number: int, _: object) -> None:
        nonlocal asked
        asked = number
        if process is None:
            leave(number)
        elif number == signal.SIGTERM:
            process.terminate()

    with handling(passed_on):
        process = subprocess.Popen([sys.executable, "-c", _AS_MODULE, *words])
        status = process.wait()
    return 128 + asked if asked else status


def _parameters() -> str:
    """The parameters of the training notebook with their defaults and meanings, a line each."""
    import papermill

    found = papermill.inspect_notebook(str(resource("notebooks") / "01_train.ipynb"))
    lines = [f"  {name:<21} {p['default']:<21} {p['help']}" for name, p in found.items()]
    return (
        "parameters, their defaults and what they mean. Where two are named, None follows the\n"
        "data: the first is for the world, the second for your own pairs and a real model.\n"
        + "\n".join(lines)
    )


if __name__ == "__main__":
    sys.exit(main())
