//! `cargo xtask images`: builds static programs and packs one OCI image each, without Docker.
//!
//! Here is what an image is called and the order of the steps; `programs` builds and examines the programs, `pack` writes images,
//! `deliver` hands them on. The same programs of the same commit give the same digests, wherever they are packed.
//! Which programs are released, and where, is in `api::controllers`; tags are decided here, and a test compares the manifests
//! in `deploy` with them.
#![expect(clippy::print_stdout, reason = "what this command prints is what it is for")]

mod build;
mod certificates;
mod deliver;
mod pack;
mod programs;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use api::controllers::{self, Program, REGISTRY};
use serde::Serialize;

use crate::steps::target_folder;
use build::Build;
use pack::{Content, Origin};
use programs::Built;

pub(crate) use programs::ensure_target;

/// Builds an OCI image of each program, and says how large each is
///
/// Each image is a folder `DIR/NAME` in the OCI layout, and an archive `DIR/NAME.tar` that `docker load`,
/// `ctr images import` and `kind load image-archive` take. `DIR/images.json` lists them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where they go instead of `images` in cargo's target folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Tagged `dev`, and quick to build instead of small
    #[arg(long)]
    dev: bool,
    /// Also what only the local cluster and the tests run: pause and test-engine
    #[arg(long)]
    with_tests: bool,
    /// Then pushes them to REGISTRY/NAME:TAG; for example ghcr.io/you, or 127.0.0.1:5000 (plain http on loopback only)
    #[arg(long, value_name = "REGISTRY")]
    push: Option<String>,
    /// Then brings them to the nodes of the running local cluster; implies --dev and --with-tests
    #[arg(long, conflicts_with_all = ["push", "out"])]
    load: bool,
}

/// What is in an image: a program, from the package of the same name.
#[derive(Debug)]
struct Image {
    program: Program,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Users run it in their clusters.
    Released,
    /// Only the local cluster and the tests run it.
    Tests,
}

const OF_TESTS: [Program; 2] = [
    Program { name: "pause", description: "Holds the namespaces of a pod" },
    Program { name: "test-engine", description: "Behaves like an inference engine" },
];

/// Where nothing is: nodes must have the images of tests already.
const TESTS_AT: &str = "local.test";
const TESTS_TAG: &str = "1";

/// What a released program and its image may take, in bytes.
const PROGRAM_BUDGET: u64 = 12_000_000;
const IMAGE_BUDGET: u64 = 15_000_000;

impl Image {
    fn reference(&self, build: Build) -> String {
        match self.purpose {
            Purpose::Released => self.program.image(build.tag()),
            Purpose::Tests => format!("{TESTS_AT}/{}:{TESTS_TAG}", self.program.name),
        }
    }
}

/// A folder of images, as its `images.json` lists them.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) images: Vec<Packed>,
}

/// One image in its folder; paths are relative to it.
#[derive(Debug, Serialize)]
pub(crate) struct Packed {
    pub(crate) name: &'static str,
    pub(crate) reference: String,
    /// Of the manifest, `sha256:…`: what a registry and a node call it.
    pub(crate) digest: String,
    pub(crate) layout: PathBuf,
    pub(crate) archive: PathBuf,
    pub(crate) binary_bytes: u64,
    pub(crate) archive_bytes: u64,
}

/// Every image, those of the tests too, quick to build: what the local cluster and the tests run.
pub(crate) fn build_dev() -> anyhow::Result<Folder> {
    build_into(&default_folder(Build::Dev)?, Build::Dev, true)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cluster = args.load.then(deliver::cluster_with_real_nodes).transpose()?;
    let folder = if args.load {
        build_dev()?
    } else {
        let wanted = if args.dev { Build::Dev } else { Build::Release };
        let path = args.out.clone().map_or_else(|| default_folder(wanted), Ok)?;
        build_into(&path, wanted, args.with_tests)?
    };
    println!("{}\n{}", table(&folder.images), folder.path.display());
    if let Some(registry) = &args.push {
        deliver::push(&folder, registry)?;
    }
    if let Some(cluster) = &cluster {
        deliver::load(&folder, cluster)?;
    }
    Ok(())
}

fn default_folder(build: Build) -> anyhow::Result<PathBuf> {
    Ok(target_folder()?.join("images").join(build.folder()))
}

fn build_into(path: &Path, build: Build, with_tests: bool) -> anyhow::Result<Folder> {
    let mut wanted = vec![(Purpose::Released, controllers::released())];
    if with_tests {
        wanted.push((Purpose::Tests, OF_TESTS.to_vec()));
    }
    let mut built = Vec::new();
    // Apart: what the tests ask of a crate must not change what is released.
    for (purpose, programs) in wanted {
        for program in programs::build(build, &programs)? {
            built.push((Image { program: program.program, purpose }, program));
        }
    }
    fs::create_dir_all(path).with_context(|| format!("failed to create {}", path.display()))?;
    let origin = Origin::of_this_commit()?;
    let mut images = Vec::new();
    for (image, built) in &built {
        images.push(packed(build, image, built, &origin, path)?);
    }
    if build == Build::Release {
        keep_budgets(&images)?;
    }
    let list = serde_json::to_string_pretty(&images).context("failed to write the list of images")?;
    let list_path = path.join("images.json");
    fs::write(&list_path, list).with_context(|| format!("failed to write {}", list_path.display()))?;
    Ok(Folder { path: path.to_owned(), images })
}

fn packed(
    build: Build,
    image: &Image,
    built: &Built,
    origin: &Origin,
    folder: &Path,
) -> anyhow::Result<Packed> {
    let Program { name, description } = image.program;
    let certificates = match image.purpose {
        Purpose::Released => Some(certificates::pem()),
        Purpose::Tests => None,
    };
    let reference = image.reference(build);
    let content = Content {
        name,
        description,
        reference: &reference,
        binary: &built.bytes,
        certificates: certificates.as_deref(),
        origin,
    };
    let (layout, archive) = (PathBuf::from(name), PathBuf::from(format!("{name}.tar")));
    let written = pack::write(&content, &folder.join(&layout), &folder.join(&archive))
        .with_context(|| format!("failed to pack the image {name}"))?;
    Ok(Packed {
        name,
        reference,
        digest: written.digest,
        layout,
        archive,
        binary_bytes: built.bytes.len() as u64,
        archive_bytes: written.archive_bytes,
    })
}

fn keep_budgets(images: &[Packed]) -> anyhow::Result<()> {
    let released = |image: &&Packed| image.reference.starts_with(REGISTRY);
    for image in images.iter().filter(released) {
        let sizes =
            [("program", image.binary_bytes, PROGRAM_BUDGET), ("image", image.archive_bytes, IMAGE_BUDGET)];
        for (what, bytes, budget) in sizes {
            if bytes > budget {
                let (name, is, may) = (image.name, megabytes(bytes), megabytes(budget));
                bail!(
                    "the {what} of {name} has {is} MB and may have {may}: look for a new dependency, or a feature of one"
                );
            }
        }
    }
    Ok(())
}

fn table(images: &[Packed]) -> String {
    let width = images.iter().map(|image| image.reference.len()).max().unwrap_or(0);
    let mut lines = format!("{:width$}  program MB  image MB  digest", "image");
    for Packed { reference, digest, binary_bytes, archive_bytes, .. } in images {
        let (binary, archive) = (megabytes(*binary_bytes), megabytes(*archive_bytes));
        lines.push_str(&format!("\n{reference:width$}  {binary:>10}  {archive:>8}  {digest}"));
    }
    lines
}

/// As disks and registries count them.
fn megabytes(bytes: u64) -> String {
    format!("{}.{:02}", bytes / 1_000_000, bytes % 1_000_000 / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::workspace;

    #[derive(Debug, serde::Deserialize)]
    struct Kustomization {
        #[serde(default)]
        images: Vec<Retagged>,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Retagged {
        name: String,
        #[serde(rename = "newTag")]
        tag: String,
    }

    fn released(name: &str) -> String {
        format!("{REGISTRY}/{name}")
    }

    fn manifests(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                manifests(&path, found);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }

    #[test]
    fn every_overlay_that_names_images_names_them_all_with_its_tag() {
        for controller in controllers::CONTROLLERS {
            let deploy = workspace().join("deploy").join(controller.name).join("overlays");
            let programs = controller.programs.iter().map(|program| program.name);
            let wanted: Vec<String> =
                std::iter::once(controller.name).chain(programs).map(released).collect();
            for (overlay, build) in [("dev", Build::Dev), ("prod", Build::Release)] {
                let path = deploy.join(overlay).join("kustomization.yaml");
                let Kustomization { images } =
                    serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
                let named: Vec<String> = images.iter().map(|image| image.name.clone()).collect();
                assert_eq!(named, wanted, "{}", path.display());
                assert!(images.iter().all(|image| image.tag == build.tag()), "{}", path.display());
            }
        }
    }

    #[test]
    fn manifests_name_only_our_images_and_only_this_version() {
        let mut all = Vec::new();
        manifests(&workspace().join("deploy"), &mut all);
        let prefix = released("");
        let known: Vec<String> =
            controllers::released().iter().map(|program| released(program.name)).collect();
        let mut named = 0;
        for (path, text) in all {
            for (at, _) in text.match_indices(&prefix) {
                let reference = text[at..].split_whitespace().next().unwrap();
                // Without a tag it is what an overlay gives a tag to.
                let (name, tag) = reference.split_once(':').unwrap_or((reference, Build::Release.tag()));
                assert!(known.contains(&name.to_owned()), "{reference} in {}", path.display());
                assert_eq!(tag, Build::Release.tag(), "{reference} in {}", path.display());
                named += 1;
            }
        }
        assert!(named >= 6, "{named}: have the manifests moved?");
    }

    #[test]
    fn a_released_image_over_its_budget_is_named_with_its_size() {
        let mut image = Packed {
            name: "inference-controller",
            reference: released("inference-controller"),
            digest: String::new(),
            layout: PathBuf::new(),
            archive: PathBuf::new(),
            binary_bytes: PROGRAM_BUDGET,
            archive_bytes: IMAGE_BUDGET,
        };
        keep_budgets(std::slice::from_ref(&image)).unwrap();
        image.archive_bytes += 10_000;
        let refusal = keep_budgets(&[image]).unwrap_err().to_string();
        assert!(
            refusal.starts_with("the image of inference-controller has 15.01 MB and may have 15.00"),
            "{refusal}"
        );
    }
}
