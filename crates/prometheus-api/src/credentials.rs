//! Tokens and authorities of servers, from Secrets in the namespace of the object that names them.
//!
//! A Secret is read by its name when a query needs it, never listed and never watched, and kept for a minute. A token goes
//! into the request of the query alone, and into no message. How often and for whom is decided by the caller.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use runtime::{
    key::Key,
    read::secrets::{Found, Secrets},
};

use crate::{
    Fault,
    client::Connections,
    secret::{Authorities, CA_KEY, TOKEN_KEY, Token},
};

/// Reads Secrets, and keeps what was made of them for a while.
pub struct Credentials {
    secrets: Secrets,
    tokens: Kept<Token>,
    connections: Kept<Connections>,
}

/// What was made of a Secret, by namespace and name.
struct Kept<T>(Mutex<HashMap<Key, Entry<T>>>);

struct Entry<T> {
    read: Timestamp,
    made: Made<T>,
}

/// What was made of a Secret of this version.
#[derive(Clone, Debug)]
pub struct Made<T> {
    pub version: String,
    pub value: T,
}

/// How long a Secret that was changed may still be used: that of a kubelet's mount.
const KEPT: SignedDuration = SignedDuration::from_secs(60);
/// Secrets of one kind that are kept at once; those beyond are read for each query.
const MOST: usize = 256;

impl Credentials {
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, tokens: Kept::new(), connections: Kept::new() }
    }

    pub async fn token(&self, secret: &Key, now: Timestamp) -> Result<Made<Token>, Fault> {
        let make = |bytes: &[u8]| Token::new(&secret.to_string(), bytes);
        self.made(&self.tokens, secret, TOKEN_KEY, make, now).await
    }

    /// Connections to servers with certificates of these authorities.
    pub async fn connections(&self, secret: &Key, now: Timestamp) -> Result<Made<Connections>, Fault> {
        let make = |bytes: &[u8]| {
            let authorities = Authorities::new(&secret.to_string(), bytes)?;
            Connections::new(&authorities).map_err(|_| Fault::InvalidSecret {
                secret: secret.to_string(),
                key: CA_KEY,
                why: "has certificates that cannot be used",
            })
        };
        self.made(&self.connections, secret, CA_KEY, make, now).await
    }

    /// A server has refused the token, or has no certificate of the authorities: the Secrets are read again before the next
    /// query, because they may have been changed since.
    pub fn refused(&self, token: Option<&Key>, authorities: Option<&Key>) {
        if let Some(token) = token {
            self.tokens.expire(token);
        }
        if let Some(authorities) = authorities {
            self.connections.expire(authorities);
        }
    }

    async fn made<T: Clone>(
        &self,
        kept: &Kept<T>,
        secret: &Key,
        key: &'static str,
        make: impl FnOnce(&[u8]) -> Result<T, Fault>,
        now: Timestamp,
    ) -> Result<Made<T>, Fault> {
        if let Some(known) = kept.fresh(secret, now) {
            return Ok(known);
        }
        let name = || secret.to_string();
        let found = match self.secrets.read(secret).await {
            Found::Secret(found) => found,
            Found::Nothing => return Err(Fault::NoSecret { secret: name(), key }),
            Found::Forbidden => return Err(Fault::SecretForbidden { secret: name() }),
            Found::Unreadable(why) => return Err(Fault::SecretUnreadable { secret: name(), why }),
        };
        if let Some(known) = kept.renewed(secret, &found.version, now) {
            return Ok(known);
        }
        let Some(bytes) = found.value(key) else {
            return Err(Fault::NoKey { secret: name(), key });
        };
        let made = Made { value: make(bytes)?, version: found.version.clone() };
        kept.keep(secret, Entry { read: now, made: made.clone() });
        Ok(made)
    }
}

impl<T: Clone> Kept<T> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn fresh(&self, secret: &Key, now: Timestamp) -> Option<Made<T>> {
        let all = self.lock();
        let entry = all.get(secret)?;
        let age = now.duration_since(entry.read);
        (SignedDuration::ZERO <= age && age < KEPT).then(|| entry.made.clone())
    }

    /// If the Secret is still of that version: open connections are used further.
    fn renewed(&self, secret: &Key, version: &str, now: Timestamp) -> Option<Made<T>> {
        let mut all = self.lock();
        let entry = all.get_mut(secret).filter(|entry| entry.made.version == version)?;
        entry.read = now;
        Some(entry.made.clone())
    }

    fn keep(&self, secret: &Key, entry: Entry<T>) {
        let mut all = self.lock();
        // What is used is read again each minute.
        all.retain(|_, known| entry.read.duration_since(known.read) < KEPT * 2);
        if all.len() < MOST || all.contains_key(secret) {
            all.insert(secret.clone(), entry);
        }
    }

    fn expire(&self, secret: &Key) {
        if let Some(entry) = self.lock().get_mut(secret) {
            entry.read = Timestamp::MIN;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Entry<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
