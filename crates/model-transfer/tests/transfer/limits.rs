//! Memory is bounded for every model, and too little space is reported before the transfer.

use std::{
    ffi::CStr,
    fs::File,
    os::unix::fs::MetadataExt as _,
    process::Command,
    time::{Duration, Instant},
};

use api::loader::ExitCode;
use rustix::process::Signal;

use crate::{
    program::{ENDS_WITHIN, Ended, Program},
    proxy::Break,
    scene::{MIB, SOURCE, Scene},
};

#[test]
fn half_a_gigabyte_is_pulled_in_less_than_96_mib() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    let size = 512 * MIB as u64;
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(size).unwrap();
    assert_peak(scene.pull()).succeeded();
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
    assert_peak(scene.pull()).succeeded();
    assert_eq!(scene.pulled().len(), 256);
}

#[test]
fn a_large_file_is_pushed_in_less_than_96_mib() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("model.bin")).unwrap().set_len(256 * MIB as u64).unwrap();
    let arguments = ["push", folder.path().to_str().unwrap(), "s3://models/out"];
    assert_peak(Program::new(scene.proxy.address, arguments)).uploaded();
    assert_eq!(scene.gateway.file("out/model.bin").metadata().unwrap().len(), 256 * MIB as u64);
}

/// Pages of a listing as the rule makes them by their number, each but the last with a token for the next.
fn list_pages(scene: &Scene, pages: usize, objects: impl Fn(usize) -> String + Send + 'static) {
    let mut number = 0;
    scene.proxy.rule(move |request| {
        if !request.is_list() {
            return Break::Status(403, "");
        }
        number += 1;
        let next = if number < pages { "<NextContinuationToken>x</NextContinuationToken>" } else { "" };
        Break::Answer(format!("<ListBucketResult>{next}{}</ListBucketResult>", objects(number)))
    });
}

fn listed(key: &str) -> String {
    let time = "2026-01-01T00:00:00.000Z";
    format!("<Contents><Key>qwen/{key}</Key><LastModified>{time}</LastModified><Size>1</Size></Contents>")
}

#[test]
fn a_key_of_megabytes_ends_the_listing_with_its_first_page() {
    let scene = Scene::new();
    // A limit of the pages, because each of them would be kept.
    list_pages(&scene, 8, |page| listed(&format!("{page}{}", "x".repeat(7 * MIB))));
    let ended = scene.pull().run();
    ended.failed(ExitCode::SourceNotFound, "a key of more than 1024 bytes begins with \"qwen/1xxx");
    assert!(ended.output.len() < 10_000, "{} bytes of output", ended.output.len());
    assert_eq!(scene.proxy.take_requests().len(), 1);
}

#[test]
fn a_listing_of_empty_pages_ends() {
    let scene = Scene::new();
    list_pages(&scene, 1100, |_| String::new());
    scene.pull().run().failed(ExitCode::SourceNotFound, "more than 1000 pages of objects below the prefix");
    assert_eq!(scene.proxy.take_requests().len(), 1000);
}

/// 50000 keys, of 8 MiB together: long names, and folders of which none is above two objects.
#[test]
fn the_largest_listing_is_kept_in_less_than_96_mib() {
    for folders in ["x".repeat(155), "x/".repeat(77) + "x"] {
        let scene = Scene::new();
        list_pages(&scene, 50, move |page| {
            (0..1000).map(|number| listed(&format!("{page:02}{number:03}/{folders}"))).collect()
        });
        let ended = assert_peak(scene.pull());
        ended.failed(ExitCode::SourceUnauthorized, "403");
    }
}

/// Short beside the time in which memory grows by a part.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Runs it, and looks at its memory until it ends.
#[track_caller]
fn assert_peak(program: Program) -> Ended {
    let running = program.start();
    let began = Instant::now();
    let mut peak = 0;
    // The kernel forgets it with the process: the last look before the end sees the peak so far.
    while !running.ends_within(BETWEEN_LOOKS) && began.elapsed() < ENDS_WITHIN {
        peak = running.peak_memory().unwrap_or(peak);
    }
    let ended = running.wait();
    assert!(peak > 4 * MIB as u64, "nothing was measured");
    assert!(peak <= 96 * MIB as u64, "{} MiB", peak / MIB as u64);
    eprintln!("peak resident memory: {} MiB", peak / MIB as u64);
    ended
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

/// A volume that fills up under way, as a pod's memory volume does.
#[test]
fn a_volume_that_is_full_is_reported_and_heals() {
    in_namespace("a_volume_that_is_full_is_reported_and_heals", fill_a_volume);
}

/// Set for the test that is run once more.
const IN_NAMESPACE: &str = "MODEL_TRANSFER_TEST_IN_NAMESPACE";

/// Runs a test of this file once more in a mount namespace, which ends with it: only the test sees what it mounts. Needs
/// `unshare`, and root or user namespaces.
#[track_caller]
fn in_namespace(test: &str, body: fn()) {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return body();
    }
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let this = format!("limits::{test}");
    unshare.arg(std::env::current_exe().unwrap()).args(["--exact", &this]).env(IN_NAMESPACE, "1");
    let inner = unshare.output().unwrap();
    let [said, complained] = [&inner.stdout, &inner.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(inner.status.success() && said.contains("1 passed"), "{said}{complained}");
}

/// Mounts a file system for the folder of the scene.
fn mount(scene: &Scene, options: &CStr) {
    std::fs::create_dir(scene.folder()).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", scene.folder(), "tmpfs", flags, Some(options)).unwrap();
}

fn fill_a_volume() {
    let scene = Scene::new();
    let folder = scene.folder();
    mount(&scene, c"size=16m");
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

#[test]
fn a_disk_that_pods_share_is_not_filled() {
    in_namespace("a_disk_that_pods_share_is_not_filled", fill_a_disk);
}

fn fill_a_disk() {
    let scene = Scene::new();
    let folder = scene.folder();
    mount(&scene, c"size=100m");
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    let model = |mib: usize| {
        File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len((mib * MIB) as u64).unwrap();
    };
    model(92);
    let pull = || scene.pull().on_disk_of(&folder);
    pull().run().failed(
        ExitCode::OutOfSpace,
        "needs 92.0 MiB more, and the disk has 100.0 MiB free, of which 11.0 MiB stay free for other pods of the node",
    );
    assert_eq!(scene.proxy.object_bytes(), 0);
    assert!(scene.pulled().is_empty());

    model(88);
    pull().run().succeeded();
    // Where the kubelet keeps its files elsewhere, the volume has a size of its own, and is filled.
    std::fs::remove_file(folder.join("model.bin")).unwrap();
    model(99);
    scene.pull().run().succeeded();
}

#[test]
fn a_disk_that_others_fill_during_the_copy_keeps_what_is_left_of_it() {
    in_namespace(
        "a_disk_that_others_fill_during_the_copy_keeps_what_is_left_of_it",
        fill_a_disk_during_the_copy,
    );
}

fn fill_a_disk_during_the_copy() {
    let scene = Scene::new();
    let other = scene.folder().join("other");
    mount(&scene, c"size=400m");
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    // More parts than connections, so that the blocks of the last ones are allocated after this.
    let size = 300 * MIB as u64;
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(size).unwrap();
    let fills = other.clone();
    scene.proxy.rule(move |request| {
        if request.is_object() && request.number == 16 {
            std::fs::write(&fills, vec![0; 100 * MIB]).unwrap();
        }
        Break::Nothing
    });
    let pull = || scene.pull().on_disk_of(&scene.folder());
    pull().run().failed(ExitCode::OutOfSpace, "stay free for other pods of the node");
    let disk = rustix::fs::statvfs(scene.folder()).unwrap();
    let free = disk.f_bavail * disk.f_frsize;
    // 11 % of it, without the small files of the run itself.
    assert!(free >= 43 * MIB as u64, "{free} bytes are free");

    std::fs::remove_file(other).unwrap();
    pull().run().succeeded();
    assert_eq!(scene.folder().join("model.bin").metadata().unwrap().len(), size);
    let fetched_twice = scene.proxy.object_bytes() - size;
    assert!(fetched_twice < 64 * MIB as u64, "{fetched_twice} bytes were fetched twice");
}

#[test]
fn a_store_that_lists_a_large_object_and_sends_nothing_occupies_nothing() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.gateway.file("qwen")).unwrap();
    File::create(scene.gateway.file("qwen/model.bin")).unwrap().set_len(1 << 30).unwrap();
    let (asked, is_asked) = std::sync::mpsc::channel();
    scene.proxy.rule(move |request| {
        if !request.is_object() {
            return Break::Nothing;
        }
        // The test may have ended.
        let _ = asked.send(());
        Break::StallAfter(0)
    });
    let pull = scene.pull().start();
    is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    let partials = std::fs::read_dir(scene.folder().join(".model-transfer.partial")).unwrap();
    let partials = partials.map(|entry| entry.unwrap().metadata().unwrap());
    let (lengths, blocks): (Vec<u64>, Vec<u64>) = partials.map(|of| (of.len(), of.blocks())).unzip();
    assert!(lengths.contains(&(1 << 30)), "{lengths:?}");
    assert!(blocks.iter().sum::<u64>() * 512 < MIB as u64, "{blocks:?}");
    pull.send(Signal::KILL);
    pull.wait();
}
