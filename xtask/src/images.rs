//! `cargo xtask images`: builds static programs and packs one OCI image each, without Docker.
//!
//! This file names the images and orders the steps: `programs` builds and examines programs, `licences` and `sbom` state
//! what they are linked from, `pack` writes images, `deliver` pushes or loads them. The same programs of the same commit
//! give the same digests on every machine. Which programs are released, and where, is in `api::controllers`; tags are
//! decided here, and a test compares the manifests in `deploy` with them.
#![expect(clippy::print_stdout, reason = "the output is the result of this command")]

mod build;
mod certificates;
mod deliver;
mod glibc;
mod licences;
mod pack;
mod platform;
mod programs;
mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use api::controllers::{self, BUDGET, Libc, Program, REGISTRY};
use serde::Serialize;

use crate::steps::target_folder;
use build::Build;
use licences::{Graph, Licences};
use pack::{Binary, Content, Origin};
use platform::Platform;
use programs::Built;

pub(crate) use programs::ensure_target;

/// Builds an OCI image of each program, and prints their sizes
///
/// Each image is a folder `DIR/NAME` in the OCI layout, and an archive `DIR/NAME.tar` that `docker load`,
/// `ctr images import` and `kind load image-archive` take. `DIR/images.json` lists them, and `DIR/NAME.cdx.json` says
/// what each contains (CycloneDX).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the images; by default `images` in cargo's target folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Tagged `dev`, and quick to build instead of small
    #[arg(long)]
    dev: bool,
    /// Also what only the local cluster and the tests run: pause, test-agent, test-engine, fake-swift and fake-evalscope
    #[arg(long)]
    with_tests: bool,
    /// Then pushes them to REGISTRY/NAME:TAG; for example ghcr.io/you, or 127.0.0.1:5000 (plain http on loopback only)
    #[arg(long, value_name = "REGISTRY")]
    push: Option<String>,
    /// Pushes although files differ from the commit that the images name
    #[arg(long, requires = "push")]
    allow_dirty: bool,
    /// Pushes although the registry has another image with the tag of a release
    #[arg(long, requires = "push")]
    overwrite: bool,
    /// What the images are for: this machine, or each platform that is named; several make an index of each image.
    /// Another platform than this machine's needs its cross compiler (on Debian, gcc-aarch64-linux-gnu)
    #[arg(long, value_name = "PLATFORM", value_enum, conflicts_with = "load")]
    platform: Vec<Platform>,
    /// Then loads them into the nodes of the running local cluster; implies --dev and --with-tests
    #[arg(long, conflicts_with_all = ["push", "out"])]
    load: bool,
}

/// An image holds one program, from the package of the same name.
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

const OF_TESTS: [Program; 5] = [
    of_tests("fake-evalscope", "Behaves like EvalScope"),
    of_tests("fake-swift", "Behaves like ms-swift"),
    of_tests("pause", "Holds the namespaces of a pod"),
    of_tests("test-agent", "Behaves like an agent"),
    of_tests("test-engine", "Behaves like an inference engine"),
];

const fn of_tests(name: &'static str, description: &'static str) -> Program {
    Program { name, description, libc: Libc::Musl, budget: BUDGET }
}

/// Programs that are found in PATH under another name.
const STAND_INS: [(&str, &str); 2] = [("fake-evalscope", "evalscope"), ("fake-swift", "swift")];

/// A registry that does not exist: images of tests are loaded into nodes and never pulled.
const TESTS_AT: &str = "local.test";
const TESTS_TAG: &str = "1";

/// What the image of a released program may have beside the program, in bytes: certificates, licences and libraries.
const BESIDE: u64 = 3_000_000;

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
    /// Of the manifest or index, `sha256:…`, by which registries and nodes name the image.
    pub(crate) digest: String,
    pub(crate) layout: PathBuf,
    pub(crate) archive: PathBuf,
    /// The largest size that the program may have in a release.
    #[serde(skip)]
    budget: u64,
    /// Of the largest platform.
    pub(crate) binary_bytes: u64,
    /// Of all platforms.
    pub(crate) archive_bytes: u64,
    /// Of one platform, on average.
    pub(crate) image_bytes: u64,
}

/// Every image, those of the tests too, quick to build: what the local cluster and the tests run.
pub(crate) fn build_dev() -> anyhow::Result<Folder> {
    build_into(&default_folder(Build::Dev)?, Build::Dev, &[Platform::of_this_machine()?], true)
}

/// Builds this program as the images of a release hold it, and says where it is.
pub(crate) fn build_released(name: &str) -> anyhow::Result<PathBuf> {
    let program = controllers::released().into_iter().find(|program| program.name == name);
    let program = program.with_context(|| format!("{name} is not released"))?;
    let built = programs::build(Build::Release, Platform::of_this_machine()?, &[program])?;
    built.into_iter().next().map(|built| built.path).context("nothing was built")
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cluster = args.load.then(deliver::cluster_with_real_nodes).transpose()?;
    if args.push.is_some() && !args.allow_dirty {
        // Before minutes are spent on builds.
        deliver::ensure_is_a_commit(&Origin::of_this_commit()?)?;
    }
    let folder = if args.load {
        build_dev()?
    } else {
        let wanted = if args.dev { Build::Dev } else { Build::Release };
        let path = args.out.clone().map_or_else(|| default_folder(wanted), Ok)?;
        let mut platforms = args.platform.clone();
        if platforms.is_empty() {
            platforms.push(Platform::of_this_machine()?);
        }
        platforms.sort();
        platforms.dedup();
        build_into(&path, wanted, &platforms, args.with_tests)?
    };
    println!("{}\n{}", table(&folder.images), folder.path.display());
    if let Some(registry) = &args.push {
        deliver::push(&folder, registry, args.overwrite)?;
    }
    if let Some(cluster) = &cluster {
        deliver::load(&folder, cluster)?;
    }
    Ok(())
}

fn default_folder(build: Build) -> anyhow::Result<PathBuf> {
    Ok(target_folder()?.join("images").join(build.folder()))
}

fn build_into(path: &Path, build: Build, platforms: &[Platform], with_tests: bool) -> anyhow::Result<Folder> {
    let of = |purpose, programs: &[Program]| -> Vec<Image> {
        programs.iter().map(|&program| Image { program, purpose }).collect()
    };
    let mut groups = vec![of(Purpose::Released, &controllers::released())];
    if with_tests {
        // Apart: features that the tests enable must not change what is released.
        groups.push(of(Purpose::Tests, &OF_TESTS));
    }
    let mut images: Vec<(Image, Vec<(Platform, Built)>)> = Vec::new();
    for group in groups {
        let programs: Vec<Program> = group.iter().map(|image| image.program).collect();
        let first = images.len();
        images.extend(group.into_iter().map(|image| (image, Vec::new())));
        for &platform in platforms {
            let built = programs::build(build, platform, &programs)?;
            for ((_, binaries), built) in images[first..].iter_mut().zip(built) {
                binaries.push((platform, built));
            }
        }
    }
    fs::create_dir_all(path).with_context(|| format!("failed to create {}", path.display()))?;
    let origin = Origin::of_this_commit()?;
    // Crates for one platform alone are few, and none has a licence that the others do not have.
    let target = platforms.first().context("no platform")?.target(Libc::Musl);
    let graph = Graph::of_target(&target)?;
    let mut all = Vec::new();
    for (image, binaries) in &images {
        all.push(packed(build, image, binaries, &graph, &origin, path)?);
    }
    if build == Build::Release {
        keep_budgets(&all)?;
    }
    let list = serde_json::to_string_pretty(&all).context("failed to write the list of images")?;
    let list_path = path.join("images.json");
    fs::write(&list_path, list).with_context(|| format!("failed to write {}", list_path.display()))?;
    Ok(Folder { path: path.to_owned(), images: all })
}

fn packed(
    build: Build,
    image: &Image,
    binaries: &[(Platform, Built)],
    graph: &Graph,
    origin: &Origin,
    folder: &Path,
) -> anyhow::Result<Packed> {
    let Program { name, description, libc, budget } = image.program;
    let (certificates, mut licences) = match image.purpose {
        Purpose::Released => (Some(certificates::pem()), graph.licences(name)?),
        Purpose::Tests => (None, Licences::new()),
    };
    match libc {
        Libc::Musl => {}
        Libc::Glibc => licences.extend(glibc::licences()?),
    }
    let reference = image.reference(build);
    let content = Content {
        name,
        description,
        reference: &reference,
        binaries: binaries
            .iter()
            .map(|(platform, built)| Binary {
                platform: *platform,
                program: &built.bytes,
                libraries: &built.libraries,
            })
            .collect(),
        certificates: certificates.as_deref(),
        stands_for: STAND_INS.iter().find(|(known, _)| *known == name).map(|(_, command)| *command),
        licences: &licences,
        origin,
    };
    let (layout, archive) = (PathBuf::from(name), PathBuf::from(format!("{name}.tar")));
    let written = pack::write(&content, &folder.join(&layout), &folder.join(&archive))
        .with_context(|| format!("failed to pack the image {name}"))?;
    if image.purpose == Purpose::Released {
        let list = serde_json::to_string_pretty(&sbom::sbom(graph, name, &written.digest)?)
            .context("failed to write what an image contains")?;
        let path = folder.join(format!("{name}.cdx.json"));
        fs::write(&path, list).with_context(|| format!("failed to write {}", path.display()))?;
    }
    let platforms = binaries.len().max(1) as u64;
    Ok(Packed {
        name,
        reference,
        digest: written.digest,
        layout,
        archive,
        budget,
        binary_bytes: binaries.iter().map(|(_, built)| built.bytes.len() as u64).max().unwrap_or(0),
        archive_bytes: written.archive_bytes,
        image_bytes: written.archive_bytes / platforms,
    })
}

fn keep_budgets(images: &[Packed]) -> anyhow::Result<()> {
    let released = |image: &&Packed| image.reference.starts_with(REGISTRY);
    for image in images.iter().filter(released) {
        let sizes = [
            ("program", image.binary_bytes, image.budget),
            ("image", image.image_bytes, image.budget + BESIDE),
        ];
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
    for Packed { reference, digest, binary_bytes, image_bytes, .. } in images {
        let (binary, archive) = (megabytes(*binary_bytes), megabytes(*image_bytes));
        lines.push_str(&format!("\n{reference:width$}  {binary:>10}  {archive:>8}  {digest}"));
    }
    lines
}

/// In millions of bytes.
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
    fn manifests_name_released_images_of_this_version_alone() {
        let mut all = Vec::new();
        manifests(&workspace().join("deploy"), &mut all);
        let prefix = released("");
        let known: Vec<String> =
            controllers::released().iter().map(|program| released(program.name)).collect();
        let mut named = 0;
        for (path, text) in all {
            for (at, _) in text.match_indices(&prefix) {
                let reference = text[at..].split_whitespace().next().unwrap();
                // An overlay sets the tag of a reference without one.
                let (name, tag) = reference.split_once(':').unwrap_or((reference, Build::Release.tag()));
                assert!(known.contains(&name.to_owned()), "{reference} in {}", path.display());
                assert_eq!(tag, Build::Release.tag(), "{reference} in {}", path.display());
                named += 1;
            }
        }
        assert!(named >= 6, "{named}: have the manifests moved?");
    }

    #[test]
    fn a_released_program_or_image_over_its_budget_is_named_with_its_size() {
        let packed = |name, budget| Packed {
            name,
            reference: released(name),
            digest: String::new(),
            layout: PathBuf::new(),
            archive: PathBuf::new(),
            budget,
            binary_bytes: 8_000_000,
            archive_bytes: 0,
            image_bytes: 8_000_000,
        };
        let mut images = [controllers::MONITOR, controllers::MODEL_TRANSFER]
            .map(|program| packed(program.name, program.budget));
        keep_budgets(&images).unwrap();
        images.iter_mut().for_each(|image| image.binary_bytes += 10_000);
        let refusal = keep_budgets(&images).unwrap_err().to_string();
        assert!(refusal.starts_with("the program of monitor has 8.01 MB and may have 8.00"), "{refusal}");
        let mut large = packed("inference-controller", BUDGET);
        large.image_bytes = 23_010_000;
        let refusal = keep_budgets(&[large]).unwrap_err().to_string();
        assert!(
            refusal.starts_with("the image of inference-controller has 23.01 MB and may have 23.00"),
            "{refusal}"
        );
    }
}
