# Prints the files that the sample agent in Python needs of this machine: the interpreter, the modules that are loaded for
# the agent's imports, and the shared libraries of both.
import json, os, pathlib, queue, re, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import encodings.ascii, encodings.idna, encodings.latin_1

# Some modules are loaded when a server is made.
ThreadingHTTPServer(("", 0), BaseHTTPRequestHandler).server_close()
program = os.path.realpath(sys.executable)
files = {program, os.__file__}
# The linker by the name that the program has for it.
files.update(name.decode() for name in re.findall(rb"/lib[\w/.-]*/ld-[\w.-]+", pathlib.Path(program).read_bytes())[:1])
files.update(module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None))
files.discard(__file__)
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[-1].strip()
    if ".so" in path:
        # A library is looked for by its short name, which is a link to the file. Threads end with libgcc.
        folder = pathlib.Path(path).parent
        links = (link for link in folder.iterdir() if os.path.realpath(link) == path)
        files.update(map(str, [*links, *folder.glob("libgcc_s.so.1")]))
print("\n".join([program, *sorted(files)]))
