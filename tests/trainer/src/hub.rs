//! What the trainer loads from a hub before it trains, as far as a cache shows it: huggingface_hub uses a cached model or data
//! set if the hub cannot be reached, and ModelScope's library asks the hub each time.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::arguments::Arguments;

/// Content of the file, if the hub is there and refuses the token.
const EXPIRED: &str = "expired";

/// The error of the real program if something cannot be loaded. Without `FAKE_SWIFT_HUB_AWAY` nothing is loaded.
pub(crate) fn load(arguments: &Arguments) -> Result<(), String> {
    let Some(away) = env::var_os("FAKE_SWIFT_HUB_AWAY").map(PathBuf::from) else { return Ok(()) };
    let datasets = arguments.datasets.iter().filter(|dataset| !dataset.starts_with("fault:"));
    let all = datasets.map(|dataset| ("datasets", dataset)).chain([("models", &arguments.model)]);
    for (kind, name) in all {
        let id = name.split('#').next().unwrap_or_default();
        if id.starts_with('/') {
            if !Path::new(id).exists() {
                return Err(format!("ValueError: path: '{id}' not found"));
            }
            continue;
        }
        let folder =
            if arguments.uses_hugging_face { of_hugging_face(kind, id) } else { of_modelscope(kind, id) };
        let is_cached = folder.join("config.json").exists();
        match (fs::read_to_string(&away).ok(), is_cached && arguments.uses_hugging_face) {
            // huggingface_hub uses no cached file after such an answer.
            (Some(fault), _) if fault == EXPIRED => return Err(unauthorized(id)),
            (Some(_), true) => {}
            (Some(_), false) => return Err(unreachable(arguments, id)),
            (None, _) => write(&folder).map_err(|error| format!("OSError: {error}"))?,
        }
    }
    Ok(())
}

fn of_hugging_face(kind: &str, id: &str) -> PathBuf {
    let name = format!("{kind}--{}", id.replace('/', "--"));
    cache("HF_HOME", ".cache/huggingface").join("hub").join(name).join("snapshots/0")
}

fn of_modelscope(kind: &str, id: &str) -> PathBuf {
    cache("MODELSCOPE_CACHE", ".cache/modelscope/hub").join(kind).join(id.replace('.', "___"))
}

fn cache(variable: &str, default: &str) -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    env::var_os(variable).map_or_else(|| home().join(default), PathBuf::from)
}

fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("model.safetensors"), [0; 64])?;
    fs::write(folder.join("config.json"), "{}")
}

fn unauthorized(id: &str) -> String {
    format!(
        "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: \
         https://huggingface.co/api/models/{id}. Invalid credentials in Authorization header"
    )
}

fn unreachable(arguments: &Arguments, id: &str) -> String {
    if arguments.uses_hugging_face {
        return "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the files on the Hub \
                and we cannot find the appropriate snapshot folder for the specified revision on the local disk. Please \
                check your internet connection and try again."
            .to_owned();
    }
    format!(
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='www.modelscope.cn', port=443): Max retries exceeded \
         with url: /api/v1/models/{id}/revisions (Caused by NameResolutionError(\"Failed to resolve 'www.modelscope.cn'\"))"
    )
}
