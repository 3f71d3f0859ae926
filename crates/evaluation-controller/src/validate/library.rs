//! A library: where models without a scheme are. Pure.

use api::aiinference::source::{InvalidSource, ModelSource};

/// A source with a place for the names of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library(String);

/// Where the name of a model stands in a library.
const ID: &str = "{id}";

impl Library {
    /// With any name in it, it must be a store or a claim.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "write for example s3://models/hub/{id}";
        if text.matches(ID).count() != 1 {
            return Err(format!("{text:?} must have {ID} once, where the name of the model stands; {FORM}"));
        }
        match text.replace(ID, "owner/name").parse::<ModelSource>() {
            Ok(ModelSource::Store { .. } | ModelSource::Claim { .. }) => Ok(Self(text.to_owned())),
            Ok(ModelSource::Hub { .. }) => Err(format!("{text:?} is a hub, and no library; {FORM}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The model of this name, which is `owner/name`.
    pub(crate) fn source(&self, id: &str) -> Result<ModelSource, InvalidSource> {
        self.0.replace(ID, id).parse()
    }
}
