//! Reading what an earlier or a later version has stored. A value that cannot be read is the default. An error instead would
//! break a typed watch of all objects because of one status. It must not be used for settings of a user.

use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// For `#[serde(default, deserialize_with = "lenient")]`.
pub fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(match Readable::deserialize(deserializer)? {
        Readable::Known(value) => value,
        Readable::Unknown(IgnoredAny) => T::default(),
    })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Readable<T> {
    Known(T),
    Unknown(IgnoredAny),
}
