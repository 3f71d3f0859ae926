"""make_stubs.py SITE_PACKAGES: stand-ins for the CUDA libraries that torch's wheel links and never calls on a CPU.

Without them `import torch` fails, and the real ones have 3 GB. libcudart is not replaced: the package nvidia-cuda-runtime
has it, and it truthfully reports that there is no device. Needs gcc and readelf; x86-64 only. A stand-in defines every name
that torch's libraries look up in the real library; each returns an error.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# The start of the names of a library whose symbols have no version.
PREFIXES = {
    "libcublas": None,
    "libcublasLt": None,
    "libcudnn": None,
    "libcufft": None,
    "libcufile": "cuFile",
    "libcupti": None,
    "libcurand": "curand",
    "libcusolver": None,
    "libcusparse": None,
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
    "libnvshmem_host": "nvshmem",
}
# Opened on a GPU only.
LAZY = "libcaffe2_nvrtc.so"


def main(site_packages):
    versions, names = needed(site_packages / "torch/lib")
    folder = site_packages / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    for library, nodes in sorted(versions.items()):
        compile_stub(folder / library, sorted(nodes), sorted(names[library], key=str))


def needed(torch):
    """Of each library, the versions and the pairs of name and version that torch's own libraries need."""
    versions, names = collections.defaultdict(set), collections.defaultdict(set)
    users = sorted(path for path in torch.glob("*.so") if path.name != LAZY)
    for user in users:
        for library in re.findall(r"NEEDED.*\[(lib[^\]]+)\]", readelf("-dW", user)):
            if is_replaced(library):
                versions[library]
        library = None
        for line in readelf("-VW", user).splitlines():
            if found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif (found := re.search(r"Name: (\S+)", line)) and library and is_replaced(library):
                versions[library].add(found[1])
    for user in users:
        # Relocations against a name that the file itself does not define.
        for name, version in re.findall(r"R_X86_64_\S+\s+0{16} (\w+)(?:@(\S+))? \+ 0", readelf("-rW", user)):
            for library, nodes in versions.items():
                prefix = PREFIXES[base(library)]
                if version in nodes or (not version and prefix and name.startswith(prefix)):
                    names[library].add((name, version))
    return versions, names


def base(library):
    return library.split(".so")[0]


def is_replaced(library):
    return base(library) in PREFIXES


def readelf(option, file):
    return subprocess.run(["readelf", option, file], capture_output=True, text=True, check=True).stdout


def compile_stub(target, nodes, names):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "stub.c")
        source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name, _ in names))
        command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-o", target, source, f"-Wl,-soname,{target.name}"]
        if nodes:
            script = pathlib.Path(folder, "versions")
            script.write_text("".join(version_node(node, node == nodes[0], names) for node in nodes))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def version_node(node, is_first, names):
    own = [name for name, version in names if version == node or (not version and is_first)]
    return f"{node} {{ {'global: ' + '; '.join(own) + ';' if own else ''} }};\n"


main(pathlib.Path(sys.argv[1]))
