//! Processes that the trainer leaves: they are waited for while it runs, and ended with it.

use std::{fs, process::Command};

use api::launcher::ExitCode;
use rustix::process::Signal;

use crate::scene::{Scene, until};

#[test]
fn an_orphan_in_a_session_of_its_own_is_ended_although_it_keeps_the_output_open() {
    let scene = Scene::new();
    let ended = scene.launch(1).faults("orphan@2").run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn orphans_that_end_are_waited_for_while_the_trainer_runs() {
    let scene = Scene::new();
    let mut launch = scene.launch(1).long().environment("PATH", "/usr/bin:/bin");
    let rest = std::mem::take(&mut launch.trainer).join(" ");
    // A hundred processes whose parent ends at once.
    let script = format!("for i in $(seq 100); do (sleep 0.05 &) ; done; exec {rest}");
    launch.trainer = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    let running = launch.start();
    running.until_step(1);
    let launcher = running.launcher.id();
    until("one child is left", || {
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
        children.split_whitespace().count() == 1
    });
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, ExitCode::Stopped.code());
}

/// In a namespace, the kernel sends process 1 only signals that it handles, and gives it all orphans.
#[test]
fn as_process_1_it_handles_signals_and_leaves_nothing() {
    let scene = Scene::new();
    let launch = scene.launch(1).long().environment("NPROC_PER_NODE", "2");
    let inner = launch.command();
    let mut outer = Command::new("unshare");
    outer.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    let allows = outer.arg("true").status().is_ok_and(|status| status.success());
    assert!(
        allows,
        "this test needs `unshare --user`: allow user namespaces (kernel.unprivileged_userns_clone), or run it as root"
    );
    let mut outer = Command::new("unshare");
    outer.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    outer.arg(inner.get_program()).args(inner.get_args()).env_clear();
    outer
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", "/usr/bin:/bin");
    let folder = tempfile::tempdir().unwrap();
    let (stdout, stderr) = (folder.path().join("stdout"), folder.path().join("stderr"));
    outer.stdout(fs::File::create(&stdout).unwrap()).stderr(fs::File::create(&stderr).unwrap());
    let mut unshare = outer.spawn().unwrap();
    until("a step", || fs::read_to_string(&stdout).unwrap().contains("{'loss'"));
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", unshare.id())).unwrap();
    let launcher = rustix::process::Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(launcher, Signal::TERM).unwrap();
    until("it ends", || unshare.try_wait().unwrap().is_some());
    let code = unshare.wait().unwrap().code();
    assert_eq!(code, Some(ExitCode::Stopped.code()), "{}", fs::read_to_string(&stderr).unwrap());
    assert_eq!(scene.marker().unwrap()["phase"], "ended");
}
