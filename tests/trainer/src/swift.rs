//! The process `swift`: prints the command, starts the trainer or torchrun, waits, and ends with its exit code. It
//! handles no signal: SIGTERM ends it and orphans the trainer, unless it is process 1, for which SIGTERM has no
//! effect.

use std::env;

use crate::{TORCHRUN, TRAINER, print, print_error, return_code, role};

pub(crate) fn run(arguments: &[String]) -> i32 {
    let method = match arguments.first().map(String::as_str) {
        Some(method @ ("sft" | "rlhf" | "pt")) => method,
        // The real program has no such option. The build of an image starts each program with it.
        Some("--help") => return 0,
        other => {
            let method = other.unwrap_or_default();
            print_error(&format!("Traceback (most recent call last):\nKeyError: '{method}'\n"));
            return 1;
        }
    };
    let is_distributed = env::var_os("NPROC_PER_NODE").is_some() || env::var_os("NNODES").is_some();
    let processes = env::var("NPROC_PER_NODE").unwrap_or_else(|_| "1".to_owned());
    let torchrun = match is_distributed {
        true => format!("-m torch.distributed.run --nproc_per_node {processes} "),
        false => String::new(),
    };
    let rest = arguments[1..].join(" ");
    let script = format!("/opt/venv/lib/python3.11/site-packages/swift/cli/{method}.py");
    print(&format!("run sh: `/opt/venv/bin/python3 {torchrun}{script} {rest}`\n"));
    let mut command = role(if is_distributed { TORCHRUN } else { TRAINER }, arguments);
    match command.status() {
        Ok(status) => return_code(status),
        Err(error) => {
            print_error(&format!("OSError: {error}\n"));
            1
        }
    }
}
