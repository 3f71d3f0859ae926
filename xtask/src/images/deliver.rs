//! Pushes images to a registry with crane, and loads them into the nodes of the local cluster.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use anyhow::{Context as _, bail, ensure};
use local_cluster::Cluster;

use super::{Folder, Packed, build::Build, pack::Origin};
use crate::dev_cluster::running;

/// An image names the commit that it was made from; with other files that would be wrong.
pub(super) fn ensure_is_a_commit(origin: &Origin) -> anyhow::Result<()> {
    ensure!(
        origin.is_a_commit(),
        "nothing was pushed: files differ from the commit that the images would name; commit them, or push with --allow-dirty"
    );
    Ok(())
}

/// Pushes each image, and compares the digest that the registry gives it. Unless `overwrite` is set, the tag of a release
/// that the registry has for another image is an error, and nothing is pushed.
pub(super) fn push(folder: &Folder, registry: &str, overwrite: bool) -> anyhow::Result<()> {
    let crane = Crane { program: local_cluster::tools::ensure_addons()?.join("crane"), registry };
    let mut missing = Vec::new();
    for image in &folder.images {
        let (_, tag) = image.reference.rsplit_once(':').context("a reference without a tag")?;
        let reference = format!("{registry}/{}:{tag}", image.name);
        let there = crane.digest(&reference)?;
        if there.as_ref() == Some(&image.digest) {
            println!("there already: {reference}@{}", image.digest);
            continue;
        }
        if let (Some(there), false) = (&there, overwrite || tag == Build::Dev.tag()) {
            bail!(
                "nothing was pushed: {reference} is {there} in the registry and {} here, and the tag of a release stays; \
                 raise the version, or replace the image with --overwrite",
                image.digest
            );
        }
        missing.push((image, reference));
    }
    for (image, reference) in missing {
        let output = crane.run(&["push", &folder.path.join(&image.layout).to_string_lossy(), &reference])?;
        ensure!(output.status.success(), "crane failed to push {reference}: {}", complaint(&output));
        let pushed = String::from_utf8_lossy(&output.stdout);
        let digest = pushed.trim().rsplit_once('@').map_or("", |(_, digest)| digest);
        ensure!(digest == image.digest, "{reference} is {digest} in the registry and {} here", image.digest);
        println!("pushed {reference}@{digest}");
    }
    Ok(())
}

/// The client of registries.
struct Crane<'a> {
    program: PathBuf,
    registry: &'a str,
}

impl Crane<'_> {
    fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(args);
        if is_loopback(self.registry) {
            command.arg("--insecure");
        }
        command.output().context("failed to start crane")
    }

    /// What the registry has under this name; none if it has nothing.
    fn digest(&self, reference: &str) -> anyhow::Result<Option<String>> {
        /// Answers of registries that do not have the tag, or no image of that name yet.
        const ABSENT: [&str; 3] = ["MANIFEST_UNKNOWN", "NAME_UNKNOWN", "404 Not Found"];
        let output = self.run(&["digest", reference])?;
        if output.status.success() {
            return Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
        }
        let complaint = complaint(&output);
        ensure!(
            ABSENT.iter().any(|answer| complaint.contains(answer)),
            "failed to look for {reference} in the registry: {complaint}"
        );
        Ok(None)
    }
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// The cluster that images are loaded into; checked before anything is built.
pub(super) fn cluster_with_real_nodes() -> anyhow::Result<Cluster> {
    let cluster = running()?;
    ensure!(
        !cluster.real_nodes().is_empty(),
        "the running cluster has no real nodes; start one with `cargo xtask up --real-nodes 2`"
    );
    Ok(cluster)
}

/// Loads each image into every real node of the cluster.
pub(super) fn load(folder: &Folder, cluster: &Cluster) -> anyhow::Result<()> {
    for Packed { reference, layout, .. } in &folder.images {
        cluster.load_image(&folder.path.join(layout), reference)?;
        println!("loaded {reference}");
    }
    Ok(())
}

/// Whether the registry is on this machine, so that plain http is safe.
fn is_loopback(registry: &str) -> bool {
    let host = registry.split('/').next().unwrap_or(registry);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        path::Path,
        process::{Child, Stdio},
    };

    use super::{
        super::{
            licences::Licences,
            pack::{self, Binary, Content},
            platform::Platform,
        },
        *,
    };

    /// crane's own, in memory.
    struct Registry {
        process: Child,
        address: String,
    }

    impl Registry {
        fn start() -> Self {
            let crane = local_cluster::tools::ensure_addons().unwrap().join("crane");
            let mut command = Command::new(crane);
            command.args(["registry", "serve", "--address", "127.0.0.1:0"]);
            let mut process = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            // `… serving on port 5000`
            let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
            let port = lines.find_map(|line| line.rsplit_once("port ")?.1.parse::<u16>().ok());
            let address = format!("127.0.0.1:{}", port.expect("a line with the port"));
            // The pipe stays open, so that the registry can go on to write its log.
            std::thread::spawn(move || lines.count());
            Self { process, address }
        }
    }

    impl Drop for Registry {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn image(folder: &Path, tag: &str, binaries: Vec<(Platform, &[u8])>) -> Folder {
        let origin = Origin::of_this_commit().unwrap();
        let reference = format!("registry.test/program:{tag}");
        let content = Content {
            name: "program",
            description: "Does nothing",
            reference: &reference,
            binaries: binaries.into_iter().map(Binary::alone).collect(),
            certificates: None,
            stands_for: None,
            licences: &Licences::new(),
            origin: &origin,
        };
        let written = pack::write(&content, &folder.join("program"), &folder.join("program.tar")).unwrap();
        let image = Packed {
            name: "program",
            reference,
            digest: written.digest,
            layout: "program".into(),
            archive: "program.tar".into(),
            budget: 0,
            binary_bytes: 0,
            archive_bytes: 0,
            image_bytes: 0,
        };
        Folder { path: folder.to_owned(), images: vec![image] }
    }

    #[test]
    fn the_tag_of_a_release_is_replaced_only_if_that_is_asked_for() {
        let registry = Registry::start();
        let folder = tempfile::tempdir().unwrap();
        let for_both: Vec<(Platform, &[u8])> = vec![(Platform::Amd64, b"one"), (Platform::Arm64, b"two")];
        let first = image(folder.path(), "1.2.3", for_both);
        push(&first, &registry.address, false).unwrap();
        push(&first, &registry.address, false).expect("the same image changes nothing");

        let other = image(folder.path(), "1.2.3", vec![(Platform::Amd64, b"three")]);
        let refusal = push(&other, &registry.address, false).unwrap_err().to_string();
        assert!(refusal.contains(&first.images[0].digest) && refusal.contains("--overwrite"), "{refusal}");
        push(&other, &registry.address, true).unwrap();

        for binary in [b"four", b"five"] {
            let dev = image(folder.path(), "dev", vec![(Platform::Amd64, binary)]);
            push(&dev, &registry.address, false).expect("a tag that is no release moves");
        }
    }

    #[test]
    fn a_registry_that_does_not_answer_is_no_registry_without_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let release = image(folder.path(), "1.2.3", vec![(Platform::Amd64, b"one")]);
        let address = Registry::start().address.clone();
        let refusal = push(&release, &address, false).unwrap_err().to_string();
        assert!(refusal.contains("failed to look for"), "{refusal}");
    }

    #[test]
    fn what_differs_from_its_commit_is_not_pushed() {
        ensure_is_a_commit(&Origin::made_from(Some("abc"))).unwrap();
        for dirty in [Some("abc-dirty"), None] {
            let refusal = ensure_is_a_commit(&Origin::made_from(dirty)).unwrap_err().to_string();
            assert!(refusal.contains("--allow-dirty"), "{refusal}");
        }
    }

    #[test]
    fn plain_http_is_used_for_registries_on_this_machine_alone() {
        for registry in ["127.0.0.1:5000", "localhost:5000/team", "[::1]:5000", "localhost"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in
            ["ghcr.io/team", "127.0.0.1.example.com:5000", "10.0.0.1:5000", "localhost.example.com"]
        {
            assert!(!is_loopback(registry), "{registry}");
        }
    }
}
