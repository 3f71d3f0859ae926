//! Models in folders.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::{Access, Content, Model};

/// Larger files are outside of git.
const LARGE: u64 = 1 << 20;

/// The models in `owner/name/0`, `owner/name/1` and so on, of which each is a commit. A file `token` beside the commits makes
/// the model private.
pub fn models_in(root: &Path) -> io::Result<Vec<Model>> {
    let mut models = Vec::new();
    for owner in entries(root)? {
        for name in entries(&owner)? {
            models.push(model(&format!("{}/{}", last(&owner), last(&name)), &name)?);
        }
    }
    Ok(models)
}

fn model(id: &str, folder: &Path) -> io::Result<Model> {
    let commits =
        (0..).map(|number: usize| folder.join(number.to_string())).take_while(|commit| commit.is_dir());
    let mut model: Option<Model> = None;
    for commit in commits {
        let mut files = BTreeMap::new();
        read(&commit, "", &mut files)?;
        model = Some(match model {
            None => Model::new(id, files),
            Some(known) => known.with_commit(files),
        });
    }
    let no_commit = || io::Error::other(format!("{}: there is no folder 0", folder.display()));
    let model = model.ok_or_else(no_commit)?;
    match fs::read_to_string(folder.join("token")) {
        Ok(token) => Ok(model.with_access(Access::Private(token.trim().to_owned()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(model),
        Err(error) => Err(error),
    }
}

fn read(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Content>) -> io::Result<()> {
    for path in entries(folder)? {
        let name = format!("{prefix}{}", last(&path));
        if path.is_dir() {
            read(&path, &format!("{name}/"), files)?;
        } else {
            let file = File::open(&path)?;
            let content = match file.metadata()?.len() {
                LARGE.. => Content::file(file)?,
                _ => Content::small(&fs::read(&path)?),
            };
            files.insert(name, content);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn last(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
