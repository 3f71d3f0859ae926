//! Calling `go`: which version is there, and building one package. It downloads modules only as go itself does.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::{Error, Result, machine::files::tail};

use super::KUBERNETES_VERSION;

/// How often the build is looked at; also how smooth the progress display is.
const POLL: Duration = Duration::from_millis(200);
const LINES_SHOWN: usize = 25;

/// The Go that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Go {
    /// As it calls itself, `go1.26.8`.
    pub(super) version: String,
}

/// The installed Go, if it is new enough for the module.
pub(super) fn find(go_mod: &str) -> Result<Go> {
    let needed =
        go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default().trim().to_owned();
    let output = Command::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        // A go.mod in the current folder could ask for another version and make the question fail.
        .current_dir("/")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::GoMissing { needed: needed.clone() },
            _ => Error::io("start", "go")(error),
        })?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if is_older(&version, &needed) {
        return Err(Error::GoTooOld { found: version.trim_start_matches("go").to_owned(), needed });
    }
    Ok(Go { version })
}

/// Main packages of a module, and the folder for their programs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Build<'a> {
    pub(super) source: &'a Path,
    pub(super) packages: &'a [&'a str],
    pub(super) folder: &'a Path,
}

/// The name that Go gives to the program of a package: the last part of its path that is no version.
pub(super) fn program_of(package: &str) -> &str {
    let is_version = |part: &str| {
        part.strip_prefix('v').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package)
}

impl Go {
    /// Builds all packages, and calls `tick` several times a second meanwhile.
    pub(super) fn build(
        &self,
        build: Build<'_>,
        flags: &[String],
        with_c: bool,
        mut tick: impl FnMut(),
    ) -> Result<()> {
        let Build { source, packages, folder } = build;
        let output_file: PathBuf = source.join("build.log");
        let log = File::create(&output_file).map_err(Error::io("create", &output_file))?;
        let mut build = Command::new("go")
            .arg("build")
            .args(flags)
            .arg("-o")
            // A slash at the end: a folder, also for one package.
            .arg(folder.join(""))
            .args(packages)
            .current_dir(source)
            .env("CGO_ENABLED", if with_c { "1" } else { "0" })
            .env("GOFLAGS", "-buildvcs=false -mod=readonly")
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            // 14 % less CPU for memory that a compiler run does not miss.
            .env("GOGC", "400")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(Error::io("start", "go"))?;
        let exit = loop {
            if let Some(exit) = build.try_wait().map_err(Error::io("wait for", "go"))? {
                break exit;
            }
            tick();
            sleep(POLL);
        };
        if exit.success() {
            return Ok(());
        }
        let mut output = tail(&output_file, LINES_SHOWN);
        if fs::metadata(&output_file).is_ok_and(|metadata| metadata.len() == 0) {
            output = format!("nothing ({exit})");
        }
        Err(Error::Build { packages: packages.join(", "), output })
    }
}

/// The flags that shape the programs. Without the version they would all call themselves v0.0.0-master.
pub(super) fn build_flags() -> Vec<String> {
    let package = "k8s.io/component-base/version";
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let linker = format!(
        "-s -w -X {package}.gitVersion={KUBERNETES_VERSION} -X {package}.gitMajor={major} \
         -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
    );
    vec!["-trimpath".to_owned(), "-ldflags".to_owned(), linker]
}

/// Compares `go1.26.8` with `1.26.0`; what cannot be read counts as 0.
fn is_older(found: &str, needed: &str) -> bool {
    let numbers = |version: &str| -> Vec<u32> {
        let digits = version.trim_start_matches("go").split(['-', ' ', '+']).next().unwrap_or_default();
        let mut numbers: Vec<u32> = digits.split('.').map(|part| part.parse().unwrap_or(0)).collect();
        numbers.resize(3, 0);
        numbers
    };
    numbers(found) < numbers(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_last_part_of_its_path_that_is_no_version() {
        let named =
            ["go.etcd.io/etcd/server/v3", "github.com/opencontainers/runc", "k8s.io/kubernetes/cmd/kubectl"];
        assert_eq!(named.map(program_of), ["server", "runc", "kubectl"]);
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(is_older("go1.9.7", "1.26.0"));
        assert!(is_older("go1.25", "1.26.0"));
        assert!(!is_older("go1.26.8", "1.26.0"));
        assert!(!is_older("go1.27-devel_abc", "1.26.0"));
    }
}
