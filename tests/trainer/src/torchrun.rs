//! The process torchrun: one trainer for each rank of the node, in a session of its own. When one fails, the others
//! get SIGTERM, and the report names the first one. When torchrun gets SIGTERM, it passes it on and fails.

use std::{
    env, fs,
    path::PathBuf,
    process::Child,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    signal::unix::{Signal as Terminate, SignalKind, signal},
    time::sleep,
};

use crate::{TRAINER, number, print_error, return_code, role};

/// torch's own limit is ten minutes; tests are shorter.
const RENDEZVOUS_WITHIN: Duration = Duration::from_secs(120);
/// torchrun looks at its ranks ten times a second.
const LOOK: Duration = Duration::from_millis(20);
/// torchrun kills a rank that ignores SIGTERM after 30 s; tests are shorter.
const LOOKS_UNTIL_KILL: usize = 250;

pub(crate) fn run(arguments: &[String]) -> i32 {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(supervise(arguments)),
        Err(_) => 1,
    }
}

/// Waits for the other nodes, as no rank trains without the others. They see each other in a folder of the output.
async fn rendezvous(nodes: u64, terminate: &mut Terminate) -> bool {
    let (Some(folder), Some(master)) = (env::var_os("FAKE_SWIFT_RENDEZVOUS"), env::var_os("MASTER_ADDR"))
    else {
        return true;
    };
    // Its name has the attempt.
    let meeting = PathBuf::from(folder).join(master);
    let own = meeting.join(number("NODE_RANK").unwrap_or(0).to_string());
    if fs::create_dir_all(&meeting).and_then(|()| fs::write(own, "")).is_err() {
        return false;
    }
    let until = Instant::now() + RENDEZVOUS_WITHIN;
    while Instant::now() < until {
        let there = fs::read_dir(&meeting).map_or(0, Iterator::count);
        if there as u64 >= nodes {
            return true;
        }
        tokio::select! {
            _ = terminate.recv() => return false,
            () = sleep(LOOK) => {}
        }
    }
    false
}

async fn supervise(arguments: &[String]) -> i32 {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return 1 };
    let per_node = number("NPROC_PER_NODE").unwrap_or(1);
    let first = number("NODE_RANK").unwrap_or(0) * per_node;
    let nodes = number("NNODES").unwrap_or(1);
    let world = nodes * per_node;
    if !rendezvous(nodes, &mut terminate).await {
        print_error("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n");
        return 1;
    }
    let mut ranks = Vec::new();
    for local in 0..per_node {
        let mut command = role(TRAINER, arguments);
        command.env("RANK", (first + local).to_string()).env("LOCAL_RANK", local.to_string());
        match command.env("WORLD_SIZE", world.to_string()).spawn() {
            Ok(child) => ranks.push(child),
            Err(_) => return 1,
        }
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => {
                end(&mut ranks).await;
                let pid = std::process::id();
                print_error(&format!(
                    "Traceback (most recent call last):\n  File \"<frozen runpy>\", line 198, in _run_module_as_main\n\
                     torch.distributed.elastic.multiprocessing.api.SignalException: Process {pid} got signal: 15\n"
                ));
                return 1;
            }
            () = sleep(LOOK) => {}
        }
        let codes: Vec<Option<i32>> = ranks.iter_mut().map(code).collect();
        if let Some((local, code)) = failed(&codes) {
            let pid = ranks[local].id();
            end(&mut ranks).await;
            print_error(&report(first as usize + local, local, code, pid));
            return 1;
        }
        if codes.iter().all(Option::is_some) {
            return 0;
        }
    }
}

fn code(rank: &mut Child) -> Option<i32> {
    rank.try_wait().ok().flatten().map(return_code)
}

fn failed(codes: &[Option<i32>]) -> Option<(usize, i32)> {
    codes
        .iter()
        .enumerate()
        .find_map(|(local, code)| code.filter(|code| *code != 0).map(|code| (local, code)))
}

async fn end(ranks: &mut [Child]) {
    let pid = std::process::id();
    for rank in ranks.iter_mut().filter_map(|rank| code(rank).is_none().then_some(rank)) {
        let closing = rank.id();
        print_error(&format!(
            "W1120 20:25:05.526000 {pid} torch/distributed/elastic/multiprocessing/api.py:900] Sending process \
             {closing} closing signal SIGTERM\n"
        ));
        let _ = kill_process(Pid::from_child(rank), Signal::TERM);
    }
    for _ in 0..LOOKS_UNTIL_KILL {
        if ranks.iter_mut().all(|rank| code(rank).is_some()) {
            return;
        }
        sleep(LOOK).await;
    }
    for rank in ranks {
        let _ = rank.kill();
        let _ = rank.wait();
    }
}

fn report(rank: usize, local: usize, code: i32, pid: u32) -> String {
    let own = std::process::id();
    let script = "/opt/venv/lib/python3.11/site-packages/swift/cli/sft.py";
    let line = "=".repeat(60);
    let thin = "-".repeat(60);
    let traceback = match code {
        ..0 => format!("Signal {} (SIGKILL) received by PID {pid}", -code),
        _ => "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html".to_owned(),
    };
    let host = env::var("HOSTNAME").unwrap_or_else(|_| "localhost".to_owned());
    format!(
        "E1120 20:25:05.590000 {own} torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) \
         local_rank: {local} (pid: {pid}) of binary: /opt/venv/bin/python3\n\
         Traceback (most recent call last):\n  File \"<frozen runpy>\", line 198, in _run_module_as_main\n  \
         File \"/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py\", line 277, \
         in launch_agent\n    raise ChildFailedError(\n\
         torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{line}\n{script} FAILED\n{thin}\n\
         Failures:\n  <NO_OTHER_FAILURES>\n{thin}\nRoot Cause (first observed failure):\n[0]:\n  \
         time      : 2026-11-20_20:25:05\n  host      : {host}\n  rank      : {rank} (local_rank: {local})\n  \
         exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : {traceback}\n{line}\n"
    )
}
