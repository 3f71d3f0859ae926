//! A request, and what it asks for. Pure.

/// Which of the two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Hub,
    /// The content network, where the large files are.
    Network,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub side: Side,
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    /// How many requests for bytes of files came before this one, to either address.
    pub number: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    /// A decoded value of the query.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut values = self.query.split('&').filter_map(|pair| pair.split_once('='));
        values.find_map(|(known, value)| (known == name).then(|| decoded(&value.replace('+', " "))))
    }

    /// By the header, or the cookie of ModelScope.
    pub fn token(&self) -> Option<String> {
        let bearer = self.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let cookie = self.header("cookie").and_then(|cookie| cookie.split_once("m_session_id="));
        bearer.or(cookie.map(|(_, rest)| rest.split(';').next().unwrap_or(rest))).map(str::to_owned)
    }

    /// Whether it is for the bytes of a file, on either address.
    pub fn is_file(&self) -> bool {
        self.method == "GET"
            && (self.side == Side::Network
                || self.path.contains("/resolve/")
                || (self.path.starts_with("/api/v1/") && self.path.ends_with("/repo")))
    }

    pub fn is_list(&self) -> bool {
        self.path.contains("/tree/") || self.path.ends_with("/repo/files")
    }

    /// Of a range.
    pub(crate) fn from(&self) -> Option<(u64, Option<u64>)> {
        let (from, to) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()))
    }
}

pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = (byte == b'%').then(|| [rest.next(), rest.next()]);
        let code = digits.and_then(|digits| {
            let digits: Vec<u8> = digits.into_iter().flatten().collect();
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
        });
        bytes.push(code.unwrap_or(byte));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
