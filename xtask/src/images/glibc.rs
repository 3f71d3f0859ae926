//! What a dynamically linked program needs in its image: the dynamic loader and the libraries of glibc, from the machine
//! that builds it, or from its cross compiler. An image with them depends on that machine, unlike the static ones.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, ensure};

use super::{licences::Licences, platform::Platform};
use crate::steps::printed;

/// A file of the image.
#[derive(Debug)]
pub(super) struct Library {
    /// Without a leading slash; where the loader looks for it.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
}

/// Name in the image and path in Debian and its descendants.
const LICENCES: [(&str, &str); 4] = [
    ("glibc/LGPL-2.1", "/usr/share/common-licenses/LGPL-2.1"),
    ("glibc/copyright", "/usr/share/doc/libc6/copyright"),
    ("libgcc/GPL-3", "/usr/share/common-licenses/GPL-3"),
    ("libgcc/copyright", "/usr/share/doc/libgcc-s1/copyright"),
];

/// What programs of this project are linked with. Another library fails the build, because its licence is not packed.
const EXPECTED: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "ld-linux"];

/// The files that a program loads when it starts.
pub(super) fn libraries(program: &Path, platform: Platform) -> anyhow::Result<Vec<Library>> {
    let is_own = platform == Platform::of_this_machine()?;
    let paths =
        if is_own { of_this_machine(program, platform)? } else { of_the_cross_compiler(program, platform)? };
    // The loader counts as well.
    ensure!(paths.len() > 1, "{} is linked with no library that was found", program.display());
    paths
        .into_iter()
        .map(|(path, from)| {
            let bytes = fs::read(&from).with_context(|| format!("failed to read {from}"))?;
            Ok(Library { path: path.trim_start_matches('/').to_owned(), bytes })
        })
        .collect()
}

/// Paths in the image and here, by what the loader says; it lists them and starts nothing.
fn of_this_machine(program: &Path, platform: Platform) -> anyhow::Result<BTreeMap<String, String>> {
    let loader = platform.loader();
    let listed = printed(Command::new(loader).arg("--list").arg(program))?;
    let mut paths = BTreeMap::from([(loader.to_owned(), loader.to_owned())]);
    for path in listed.lines().filter_map(|line| line.split_once("=> ")?.1.split_whitespace().next()) {
        let name = path.rsplit('/').next().unwrap_or_default();
        ensure!(EXPECTED.iter().any(|expected| name.starts_with(expected)), "it needs {path}");
        paths.insert(path.to_owned(), path.to_owned());
    }
    Ok(paths)
}

/// The same of another platform, whose loader does not run here: the files of Debian's cross compiler that the program
/// names. It is linked with them, so one that is missing has failed the build.
fn of_the_cross_compiler(program: &Path, platform: Platform) -> anyhow::Result<BTreeMap<String, String>> {
    let bytes = fs::read(program).with_context(|| format!("failed to read {}", program.display()))?;
    let triple = format!("{}-linux-gnu", platform.processor());
    let loader = platform.loader();
    let from = |name: &str| format!("/usr/{triple}/lib/{name}");
    let loader_name = loader.rsplit('/').next().unwrap_or_default();
    let mut paths = BTreeMap::from([(loader.to_owned(), from(loader_name))]);
    for name in EXPECTED.iter().filter(|name| name.contains(".so.") && contains(&bytes, name.as_bytes())) {
        paths.insert(format!("/lib/{triple}/{name}"), from(name));
    }
    Ok(paths)
}

/// The texts of the licences of these libraries.
pub(super) fn licences() -> anyhow::Result<Licences> {
    LICENCES
        .iter()
        .map(|(name, path)| {
            let text = fs::read(path).with_context(|| {
                format!("failed to read {path}, the licence of a library in the image: build it on Debian or Ubuntu")
            })?;
            Ok(((*name).to_owned(), text))
        })
        .collect()
}

/// Whether the bytes contain the text.
pub(super) fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return true };
    let mut from = bytes;
    while let Some(at) = from.iter().position(|byte| byte == first) {
        from = &from[at + 1..];
        if from.starts_with(rest) {
            return true;
        }
    }
    false
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn this_test_itself_needs_the_loader_and_libc_and_nothing_unexpected() {
        let platform = Platform::of_this_machine().unwrap();
        let found = libraries(&std::env::current_exe().unwrap(), platform).unwrap();
        let paths: Vec<&str> = found.iter().map(|library| library.path.as_str()).collect();
        assert!(paths.contains(&platform.loader().trim_start_matches('/')), "{paths:?}");
        assert!(paths.iter().any(|path| path.ends_with("/libc.so.6")), "{paths:?}");
        assert!(found.iter().all(|library| library.bytes.starts_with(b"\x7fELF")), "{paths:?}");
        let other = if platform == Platform::Amd64 { Platform::Arm64 } else { Platform::Amd64 };
        let own = std::env::current_exe().unwrap();
        let paths = of_the_cross_compiler(&own, other).unwrap();
        let libc = format!("/lib/{}-linux-gnu/libc.so.6", other.processor());
        assert!(paths.contains_key(other.loader()) && paths.contains_key(&libc), "{paths:?}");
    }
}
