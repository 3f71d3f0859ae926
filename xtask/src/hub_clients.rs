//! `cargo xtask hub-clients`: the hubs' own clients download from the stand-in that the tests of the loader use. They come
//! from PyPI, so this is no part of the tests.

use crate::{
    python::{self, Recipe, Venv},
    steps::{cargo, succeed},
};

const REQUIREMENTS: &str = include_str!("hub_clients/requirements.txt");
/// Names the interpreter that has the clients, for the tests of `tests/hub-server`.
const PYTHON: &str = "HUB_CLIENTS_PYTHON";

pub(crate) fn run() -> anyhow::Result<()> {
    let recipe = Recipe {
        name: "hub-clients",
        content: &format!(
            "huggingface_hub {} and modelscope {}",
            python::version(REQUIREMENTS, "huggingface_hub"),
            python::version(REQUIREMENTS, "modelscope")
        ),
        cost: "0.1 GB, about 20 seconds",
        parts: &[REQUIREMENTS],
    };
    let environment = python::ensure(&recipe, |folder| Venv::make(folder)?.install_listed(REQUIREMENTS))?;
    let mut test =
        cargo(["test", "--locked", "--package", "hub-server", "--test", "clients", "--", "--ignored"]);
    succeed(test.env(PYTHON, environment.program("python")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::steps::workspace;

    #[test]
    fn every_package_has_one_exact_version() {
        let packages = python::packages(REQUIREMENTS);
        assert!(
            ["huggingface_hub", "modelscope"].iter().all(|client| packages.contains(client)),
            "{packages:?}"
        );
    }

    #[test]
    fn the_tests_read_this_variable() {
        let tests = fs::read_to_string(workspace().join("tests/hub-server/tests/clients.rs")).unwrap();
        assert!(tests.contains(&format!("std::env::var(\"{PYTHON}\")")));
    }
}
