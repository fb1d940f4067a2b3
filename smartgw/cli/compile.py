"""`smartgw compile`: translate the data path and discovery to machine code.

Owns how it is made and put in its place in one step. What is compiled, and when the result is
used, is decided by `smartgw.native`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from smartgw import native
from smartgw.cli import CommandError

HELP = "translate the data path and discovery to machine code"
EPILOG = """\
The gateway is Python and runs as such. Compiled, its data path does the same with about a third
less CPU, and so does what takes in the messages of hosts. What is compiled lies in the environment
of this Python and is used by whatever starts after, as long as the source has not changed since.
Needs mypy, setuptools and a C compiler:

  apt-get install -y gcc && pip install 'smart-gateway[native]'

examples:
  smartgw compile               two minutes, once for each version
  smartgw compile --check       say whether the compiled data path is in use; exit code 1: it is not
  SMARTGW_NATIVE=off smartgw serve --config smartgw.toml     run the Python source all the same
"""

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
out, name, *files = sys.argv[1:]
extensions = mypycify(
    ["--config-file=mypy.ini", *files], opt_level="2", debug_level="0", group_name=name
)
setup(name=name, ext_modules=extensions, packages=[], py_modules=[],
      script_args=["-q", "build_ext", "--build-lib", out, "--build-temp", out + ".temp"])
"""
_MYPY = """\
[mypy]
explicit_package_bases = True
mypy_path = $MYPY_CONFIG_FILE_DIR
ignore_missing_imports = True
follow_imports_for_stubs = True
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--check", action="store_true", help="compile nothing; say what is in use")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    folder = native.place()
    made = False
    if not args.check and not folder.is_dir():
        if not args.json:
            print("compiling the data path ...", file=sys.stderr, flush=True)
        _make(folder)
        made = True
    there = folder.is_dir()
    if args.json:
        print(json.dumps({"compiled": there, "folder": str(folder), "made": made}))
    elif there:
        print(f"the data path is compiled: {folder}")
    else:
        print(
            "the data path is not compiled, or its source has changed since; run: smartgw compile"
        )
    return 0 if there else 1


def _make(folder: Path) -> None:
    """Compile into a folder beside the final one, and give it its name when it is whole."""
    if shutil.which(os.environ.get("CC") or sysconfig.get_config_var("CC").split()[0]) is None:
        raise CommandError("no C compiler is there; on Debian and Ubuntu: apt-get install -y gcc")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise CommandError(
            f"{header} is missing; on Debian and Ubuntu: apt-get install -y python3-dev"
        )
    with tempfile.TemporaryDirectory(prefix="smartgw-") as work:
        made = Path(work) / "out"
        _compile(Path(work), made)
        beside = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            shutil.copytree(made, beside)
            # What was made from other source is of no use to whoever starts from now on, and
            # whoever runs it holds it open.
            for old in folder.parent.iterdir():
                if not old.name.startswith("."):
                    shutil.rmtree(old, ignore_errors=True)
            beside.rename(folder)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            if folder.is_dir():
                return  # another run was faster
            raise CommandError(f"{folder}: {error.strerror or error}") from None


def _compile(work: Path, out: Path) -> None:
    sources = native.sources()
    # A copy, since mypy does not take the packages of an environment for source.
    for package, root in {(m.split(".")[0], _root(m, path)) for m, path in sources.items()}:
        shutil.copytree(
            root / package, work / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    (work / "mypy.ini").write_text(_MYPY)
    files = [str(Path(*module.split(".")).with_suffix(".py")) for module in sources]
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(out), native.LIBRARY, *files],
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        if "No module named" in done.stdout:
            raise CommandError(
                "mypy or setuptools is missing; run: pip install 'smart-gateway[native]'"
            )
        raise CommandError("the compiler refused:\n" + done.stdout[-4000:])


def _root(module: str, path: Path) -> Path:
    return path.parents[module.count(".")]
