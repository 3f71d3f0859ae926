//! The bytes of images: the same on every machine, and in the form that nodes and registries expect.

use std::{collections::BTreeMap, io::Read as _};

use flate2::read::GzDecoder;
use tempfile::TempDir;

use super::*;

const REFERENCE: &str = "registry.test/program:1";

/// Metadata of one entry of a layer.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    mode: u32,
    owner: (u64, u64),
    time: u64,
}

fn packed(folder: &TempDir, binary: &[u8]) -> Written {
    packed_for(folder, vec![(Platform::Amd64, binary)])
}

fn packed_for(folder: &TempDir, binaries: Vec<(Platform, &[u8])>) -> Written {
    let origin = Origin { created: "2026-01-02T03:04:05Z".to_owned(), revision: Some("abc".to_owned()) };
    let certificates = certificates::pem();
    let content = Content {
        name: "program",
        description: "Does nothing",
        reference: REFERENCE,
        binaries: binaries.into_iter().map(Binary::alone).collect(),
        certificates: Some(&certificates),
        stands_for: None,
        licences: &[("LICENSE", "ours"), ("one-1.0/LICENSE", "of one"), ("one-1.0/NOTICE", "of one")]
            .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
            .into(),
        origin: &origin,
    };
    write(&content, &folder.path().join("program"), &folder.path().join("program.tar")).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn json(folder: &TempDir, path: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.path().join("program").join(path)).unwrap()).unwrap()
}

/// The blob that a descriptor names. Its digest and size are checked.
fn blob(folder: &TempDir, descriptor: &Value) -> Vec<u8> {
    let named = descriptor["digest"].as_str().unwrap();
    let path = folder.path().join("program/blobs").join(named.replace(':', "/"));
    let bytes = fs::read(path).unwrap();
    assert_eq!((digest(&bytes).as_str(), descriptor["size"].as_u64()), (named, Some(bytes.len() as u64)));
    bytes
}

fn manifest(folder: &TempDir) -> Value {
    serde_json::from_slice(&blob(folder, &json(folder, "index.json")["manifests"][0])).unwrap()
}

fn configuration(folder: &TempDir) -> Value {
    serde_json::from_slice(&blob(folder, &manifest(folder)["config"])).unwrap()
}

fn uncompressed_layer(folder: &TempDir) -> Vec<u8> {
    let mut tar = Vec::new();
    let compressed = blob(folder, &manifest(folder)["layers"][0]);
    GzDecoder::new(compressed.as_slice()).read_to_end(&mut tar).unwrap();
    tar
}

#[test]
fn the_same_program_packed_twice_gives_the_same_bytes() {
    let (one, other) = (folder(), folder());
    let digests = [packed(&one, b"program").digest, packed(&other, b"program").digest];
    assert_eq!(digests[0], digests[1]);
    let archives = [&one, &other].map(|folder| fs::read(folder.path().join("program.tar")).unwrap());
    assert_eq!(archives[0], archives[1]);
}

#[test]
fn another_program_gives_another_digest_and_leaves_nothing_of_the_first() {
    let folder = folder();
    let first = packed(&folder, b"program");
    assert_ne!(packed(&folder, b"another program").digest, first.digest);
    assert_eq!(fs::read_dir(folder.path().join("program/blobs/sha256")).unwrap().count(), 3);
}

#[test]
fn a_folder_that_is_no_image_is_not_replaced() {
    let folder = folder();
    fs::create_dir(folder.path().join("program")).unwrap();
    let origin = Origin { created: String::new(), revision: None };
    let content = Content {
        name: "program",
        description: "",
        reference: REFERENCE,
        binaries: vec![Binary::alone((Platform::Amd64, b""))],
        certificates: None,
        stands_for: None,
        licences: &Licences::new(),
        origin: &origin,
    };
    let refused = write(&content, &folder.path().join("program"), &folder.path().join("program.tar"));
    assert!(refused.unwrap_err().to_string().contains("is no image"));
}

#[test]
fn a_layer_holds_the_program_and_what_programs_look_for_and_nothing_of_this_machine() {
    let folder = folder();
    packed(&folder, b"program");
    let layer = uncompressed_layer(&folder);
    let mut tar = tar::Archive::new(layer.as_slice());
    let entries: Vec<Entry> = tar
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            Entry {
                path: entry.path().unwrap().to_string_lossy().into_owned(),
                mode: header.mode().unwrap(),
                owner: (header.uid().unwrap(), header.gid().unwrap()),
                time: header.mtime().unwrap(),
            }
        })
        .collect();
    let expected = [
        ("etc/", 0o755),
        ("etc/group", 0o644),
        ("etc/passwd", 0o644),
        ("etc/ssl/", 0o755),
        ("etc/ssl/certs/", 0o755),
        ("etc/ssl/certs/ca-certificates.crt", 0o644),
        ("licenses/", 0o755),
        ("licenses/LICENSE", 0o644),
        ("licenses/one-1.0/", 0o755),
        ("licenses/one-1.0/LICENSE", 0o644),
        ("licenses/one-1.0/NOTICE", 0o644),
        ("program", 0o755),
    ];
    assert_eq!(
        entries,
        expected.map(|(path, mode)| Entry { path: path.to_owned(), mode, owner: (0, 0), time: 0 })
    );
}

#[test]
fn a_program_that_stands_for_another_is_in_path_and_has_a_folder_for_temporary_files() {
    let folder = folder();
    let origin = Origin::made_from(None);
    let content = Content {
        name: "program",
        description: "",
        reference: REFERENCE,
        binaries: vec![Binary::alone((Platform::Amd64, b"program"))],
        certificates: None,
        stands_for: Some("command"),
        licences: &Licences::new(),
        origin: &origin,
    };
    write(&content, &folder.path().join("program"), &folder.path().join("program.tar")).unwrap();
    let layer = uncompressed_layer(&folder);
    let mut tar = tar::Archive::new(layer.as_slice());
    let (mut target, mut mode) = (None, None);
    for entry in tar.entries().unwrap() {
        let entry = entry.unwrap();
        match entry.path().unwrap().to_str().unwrap() {
            "usr/local/bin/command" => target = entry.link_name().unwrap().map(|name| name.into_owned()),
            "tmp/" => mode = entry.header().mode().ok(),
            _ => {}
        }
    }
    assert_eq!((target.as_deref(), mode), (Some(Path::new("/program")), Some(0o1777)));
}

#[test]
fn a_node_finds_who_runs_it_and_what_it_was_made_from() {
    let folder = folder();
    let written = packed(&folder, b"program");
    let index = json(&folder, "index.json");
    assert_eq!(index["manifests"][0]["digest"], json!(written.digest));
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], json!(REFERENCE));
    let configuration = configuration(&folder);
    assert_eq!(configuration["config"]["User"], json!("65532:65532"));
    assert_eq!(configuration["config"]["Entrypoint"], json!(["/program"]));
    assert_eq!(configuration["config"]["Labels"]["org.opencontainers.image.revision"], json!("abc"));
    assert_eq!(configuration["created"], json!("2026-01-02T03:04:05Z"));
    assert_eq!(configuration["rootfs"]["diff_ids"], json!([digest(&uncompressed_layer(&folder))]));
}

#[test]
fn an_image_for_two_platforms_is_an_index_in_which_each_has_its_program() {
    let folder = folder();
    let written = packed_for(&folder, vec![(Platform::Amd64, b"one"), (Platform::Arm64, b"other")]);
    let named = &json(&folder, "index.json")["manifests"][0];
    assert_eq!((&named["digest"], &named["mediaType"]), (&json!(written.digest), &json!(INDEX)));
    let index: Value = serde_json::from_slice(&blob(&folder, named)).unwrap();
    let mut programs = Vec::new();
    for descriptor in index["manifests"].as_array().unwrap() {
        let manifest: Value = serde_json::from_slice(&blob(&folder, descriptor)).unwrap();
        let configuration: Value = serde_json::from_slice(&blob(&folder, &manifest["config"])).unwrap();
        assert_eq!(configuration["architecture"], descriptor["platform"]["architecture"]);
        let mut tar = Vec::new();
        let compressed = blob(&folder, &manifest["layers"][0]);
        GzDecoder::new(compressed.as_slice()).read_to_end(&mut tar).unwrap();
        for entry in tar::Archive::new(tar.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.path().unwrap().as_ref() == Path::new("program") {
                let mut program = String::new();
                entry.read_to_string(&mut program).unwrap();
                programs.push((configuration["architecture"].clone(), program));
            }
        }
    }
    assert_eq!(programs, [(json!("amd64"), "one".to_owned()), (json!("arm64"), "other".to_owned())]);
}

#[test]
fn an_archive_is_its_layout_and_docker_finds_every_path_in_it() {
    let folder = folder();
    packed(&folder, b"program");
    let archive = fs::read(folder.path().join("program.tar")).unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.insert(entry.path().unwrap().to_string_lossy().into_owned(), bytes);
    }
    for (path, bytes) in files.iter().filter(|(path, _)| !path.ends_with('/')) {
        assert_eq!(*bytes, fs::read(folder.path().join("program").join(path)).unwrap(), "{path}");
    }
    let docker: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
    assert_eq!(docker[0]["RepoTags"], json!([REFERENCE]));
    for path in [&docker[0]["Config"], &docker[0]["Layers"][0]] {
        assert!(files.contains_key(path.as_str().unwrap()), "{path}");
    }
}

#[test]
fn every_certificate_is_one_that_a_program_can_read() {
    let text = certificates::pem();
    let certificates = text.matches("-----BEGIN CERTIFICATE-----\n").count();
    assert!(certificates > 100, "{certificates}");
    assert!(text.lines().all(|line| line.len() <= 64 && line.is_ascii()));
}

#[test]
fn the_libraries_of_a_program_are_where_its_loader_looks_for_them() {
    let origin = Origin { created: String::new(), revision: None };
    let libraries = ["lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2"]
        .map(|path| Library { path: path.to_owned(), bytes: b"code".to_vec() });
    let content = Content {
        name: "program",
        description: "",
        reference: REFERENCE,
        binaries: vec![Binary { platform: Platform::Amd64, program: b"elf", libraries: &libraries }],
        certificates: None,
        stands_for: None,
        licences: &Licences::new(),
        origin: &origin,
    };
    let tar = layer(&content, &content.binaries[0]).unwrap();
    let mut tar = tar::Archive::new(tar.as_slice());
    let paths: Vec<String> =
        tar.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    for path in
        ["lib/x86_64-linux-gnu/", "lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2", "program"]
    {
        assert!(paths.contains(&path.to_owned()), "{path} in {paths:?}");
    }
}
