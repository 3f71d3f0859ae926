//! Memory is bounded for every model, and too little space is reported before the transfer.

use std::{fs::File, process::Command, time::Duration};

use api::loader::ExitCode;

use crate::{
    program::Program,
    scene::{MIB, SOURCE, Scene},
};

#[test]
fn half_a_gigabyte_is_pulled_in_less_than_96_mib() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    let size = 512 * MIB as u64;
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(size).unwrap();
    assert_peak(scene.pull());
    assert_eq!(scene.folder().join("model.bin").metadata().unwrap().len(), size);
}

#[test]
fn many_files_that_are_held_until_they_are_whole_are_pulled_in_less_than_96_mib() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    for number in 0..256 {
        let file = File::create(scene.gateway.file(&format!("qwen/{number}.bin"))).unwrap();
        file.set_len(MIB as u64).unwrap();
    }
    assert_peak(scene.pull());
    assert_eq!(scene.pulled().len(), 256);
}

#[test]
fn a_large_file_is_pushed_in_less_than_96_mib() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("model.bin")).unwrap().set_len(256 * MIB as u64).unwrap();
    assert_peak(Program::new(
        scene.proxy.address,
        ["push", folder.path().to_str().unwrap(), "s3://models/out"],
    ));
    assert_eq!(scene.gateway.file("out/model.bin").metadata().unwrap().len(), 256 * MIB as u64);
}

/// Short beside the time in which memory grows by a part.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Runs it, and looks at its memory until it ends.
fn assert_peak(program: Program) {
    let running = program.start();
    let mut peak = 0;
    // The kernel forgets it with the process: the last look before the end sees the peak so far.
    while !running.ends_within(BETWEEN_LOOKS) {
        peak = running.peak_memory().unwrap_or(peak);
    }
    running.wait().succeeded();
    assert!(peak > 4 * MIB as u64, "nothing was measured");
    assert!(peak <= 96 * MIB as u64, "{} MiB", peak / MIB as u64);
    eprintln!("peak resident memory: {} MiB", peak / MIB as u64);
}

#[test]
fn a_model_that_does_not_fit_is_reported_before_a_byte_is_fetched() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    // A file with a hole: larger than any disk, and occupies nothing.
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(15 << 40).unwrap();
    scene.pull().run().failed(ExitCode::OutOfSpace, "make its volume larger");
    assert_eq!(scene.proxy.object_bytes(), 0);
    assert!(scene.pulled().is_empty());
}

#[test]
fn a_model_that_its_volume_may_not_hold_is_refused_before_a_byte_is_fetched() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(3 * MIB as u64 / 2).unwrap();
    File::create(scene.gateway.file("qwen/config.json")).unwrap().set_len(1).unwrap();
    let ended = scene.pull().arg("--size-limit=1.5Mi").run();
    ended.failed(
        ExitCode::OutOfSpace,
        "s3://models/qwen needs 1.5 MiB (1576960 bytes) and its volume may hold 1.5 MiB (1572864 bytes): raise \
         spec.modelVolume.size",
    );
    assert_eq!(scene.proxy.object_bytes(), 0);
    assert!(scene.pulled().is_empty());

    scene.pull().env("TRANSFER_SIZE_LIMIT", "1576960").run().succeeded();
    let nonsense = scene.pull().env("TRANSFER_SIZE_LIMIT", "much").run();
    assert_eq!(nonsense.code, Some(ExitCode::Usage.code()), "{}", nonsense.output);
}

/// A volume that fills up under way, as a pod's memory volume does. It is mounted where only this test sees it: in a
/// mount namespace in which the test is run once more, and which ends with it. Needs `unshare`, and root or user
/// namespaces.
#[test]
fn a_volume_that_is_full_is_reported_and_heals() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return fill_a_volume();
    }
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let this = "limits::a_volume_that_is_full_is_reported_and_heals";
    unshare.arg(std::env::current_exe().unwrap()).args(["--exact", this]).env(IN_NAMESPACE, "1");
    let inner = unshare.output().unwrap();
    let [said, complained] = [&inner.stdout, &inner.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(inner.status.success() && said.contains("1 passed"), "{said}{complained}");
}

/// Set for the test that is run once more.
const IN_NAMESPACE: &str = "MODEL_TRANSFER_TEST_IN_NAMESPACE";

fn fill_a_volume() {
    let scene = Scene::new();
    let folder = scene.folder();
    std::fs::create_dir(&folder).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &folder, "tmpfs", flags, Some(c"size=16m")).unwrap();
    scene.gateway.put_in_parts("qwen/model.bin", &crate::scene::noise(40, 8 * MIB));
    // Something else holds most of the volume.
    std::fs::write(folder.join("other"), vec![0; 12 * MIB]).unwrap();
    scene.pull().run().failed(ExitCode::OutOfSpace, "make its volume larger");

    let again = scene.pull_from(SOURCE).start();
    again.until_says("looking again", 1);
    std::fs::remove_file(folder.join("other")).unwrap();
    again.wait().succeeded();
    assert_eq!(std::fs::read(folder.join("model.bin")).unwrap(), crate::scene::noise(40, 8 * MIB));
}
