# A worker of an AIDispatcher with Python's standard library alone: POST a task to :8000, and it is done in its session.
# It shows the whole contract: memory at the start, load on AGENT_METRICS_PORT, state in STATE_DIR, a log of JSON lines.
import json, os, pathlib, queue, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STATE = pathlib.Path(os.environ["STATE_DIR"], "sessions.json")
state = json.loads(STATE.read_text()) if STATE.exists() else {"sessions": {}, "waiting": []}
memory = pathlib.Path(os.environ.get("MEMORY_DIR", "."), "memory.jsonl")
memories = [json.loads(line) for line in memory.open()] if memory.exists() else []
tasks, load, lock = queue.Queue(), {"in_flight": 0, "tokens": 0, "done": 0}, threading.RLock()
started = time.time()

def log(body, **attributes):
    with open(os.environ.get("AGENT_LOG_FILE", os.devnull), "a") as file:
        file.write(json.dumps({"severityText": "INFO", "body": body, "attributes": attributes}) + "\n")

def save():  # Also within itself, on a second SIGTERM. Under a name with a dot first: the monitor saves whole files only.
    with lock:
        new = STATE.with_name(".new")
        new.write_text(json.dumps(state))
        new.replace(STATE)

def work():
    while True:
        task = tasks.get()
        load["in_flight"] = 1
        time.sleep(task.get("seconds", 0))  # Here a model is called: MODEL_ENDPOINT, MODEL_REF, MODEL_API_KEY.
        with lock:
            state["sessions"].setdefault(task["session"], []).append(task["text"])
            state["waiting"].remove(task)
            save()
        load.update(in_flight=0, done=load["done"] + 1, tokens=load["tokens"] + len(task["text"].split()))
        log("done", session=task["session"])

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state["waiting"].append(task)
        save()
        tasks.put(task)
        self.answer(202, "")

    def do_GET(self):
        metrics = f"agent_queue_depth {tasks.qsize()}\nagent_tasks_in_flight {load['in_flight']}\n" \
                  f"agent_tasks_total {load['done']}\nagent_tokens_total {load['tokens']}\n" \
                  f"process_start_time_seconds {started}\n"
        self.answer(200, metrics if self.path == "/metrics" else json.dumps({**state, "memories": len(memories)}))

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

signal.signal(signal.SIGTERM, lambda *_: (save(), sys.exit(0)))
list(map(tasks.put, state["waiting"]))
for run in (work, ThreadingHTTPServer(("", int(os.environ["AGENT_METRICS_PORT"])), Handler).serve_forever):
    threading.Thread(target=run, daemon=True).start()
ThreadingHTTPServer(("", int(os.environ.get("AGENT_PORT", "8000"))), Handler).serve_forever()
