//! Collects the pages of a listing and bounds what they may hold, because a listing is kept in memory. Pure.

use object_store::{ObjectMeta, list::PaginatedListResult};

use super::RequestError;

/// Limit for the objects of a listing. Models have tens to thousands of files.
const MOST_OBJECTS: usize = 50_000;
/// The limit of S3 for a key.
const LONGEST_KEY: usize = 1024;
/// Several times the length of a SHA-512 in hexadecimal digits; the ETags of S3 have up to 40 bytes.
const LONGEST_ETAG: usize = 512;
/// Limit for the bytes of all keys and ETags: 167 for each of the most objects. The paths, versions and names that are
/// derived from them are kept as well, several times as much.
const MOST_TEXT: usize = 8 << 20;
/// Stores fill a page with 1000 objects, and this many pages hold the most objects of one that gives 50.
const MOST_PAGES: usize = 1000;
/// Limit for the text that requests the next page, which becomes part of an address. Stores derive it from a key.
pub(crate) const LONGEST_TOKEN: usize = 4096;

/// The objects of the pages so far.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) objects: Vec<ObjectMeta>,
    bounds: Bounds,
}

/// Counts what a listing has so far.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    objects: usize,
    text: usize,
    pages: usize,
}

impl Bounds {
    /// Another page, and whether one follows. Fails with the first limit that is exceeded.
    pub(crate) fn page(&mut self, is_followed: bool) -> Result<(), RequestError> {
        self.pages += 1;
        if is_followed && self.pages == MOST_PAGES {
            return Err(large(format!("more than {MOST_PAGES} pages of objects")));
        }
        Ok(())
    }

    /// Another object. `beside`: the bytes that are kept beside its key.
    pub(crate) fn object(&mut self, key: &str, beside: usize) -> Result<(), RequestError> {
        if key.len() > LONGEST_KEY {
            let beginning = &key[..key.floor_char_boundary(64)];
            let why = format!(
                "a key of more than {LONGEST_KEY} bytes begins with {beginning:?}: rename the object"
            );
            return Err(RequestError::InvalidKey(why));
        }
        self.text += key.len() + beside;
        if self.text > MOST_TEXT {
            return Err(large(format!("objects with more than {} MiB of keys and ETags", MOST_TEXT >> 20)));
        }
        if self.objects == MOST_OBJECTS {
            return Err(large(format!("more than {MOST_OBJECTS} objects")));
        }
        self.objects += 1;
        Ok(())
    }
}

impl Listing {
    /// Adds a page. Returns the token of the next one, if there is one, or the first limit that is exceeded.
    pub(super) fn add(&mut self, page: PaginatedListResult) -> Result<Option<String>, RequestError> {
        for object in page.result.objects {
            self.add_object(object)?;
        }
        let next = page.page_token.filter(|token| !token.is_empty());
        if next.as_ref().is_some_and(|token| token.len() > LONGEST_TOKEN) {
            let why = format!("a continuation token of more than {LONGEST_TOKEN} bytes");
            return Err(RequestError::MalformedAnswer(why));
        }
        self.bounds.page(next.is_some())?;
        Ok(next)
    }

    fn add_object(&mut self, object: ObjectMeta) -> Result<(), RequestError> {
        let key = object.location.as_ref();
        let etag = object.e_tag.as_ref().map_or(0, String::len);
        if etag > LONGEST_ETAG {
            let beginning = &key[..key.floor_char_boundary(64)];
            let why = format!("{beginning:?} has an ETag of more than {LONGEST_ETAG} bytes");
            return Err(RequestError::MalformedAnswer(why));
        }
        self.bounds.object(key, etag)?;
        self.objects.push(object);
        Ok(())
    }
}

fn large(what: String) -> RequestError {
    RequestError::LargeListing(what)
}

#[cfg(test)]
mod tests {
    use object_store::{ListResult, path::Path};

    use super::*;

    fn object(key: &str, etag: Option<&str>) -> ObjectMeta {
        let (location, e_tag) = (Path::parse(key).unwrap(), etag.map(str::to_owned));
        ObjectMeta { location, e_tag, last_modified: std::time::UNIX_EPOCH.into(), size: 1, version: None }
    }

    fn page(objects: Vec<ObjectMeta>, next: Option<&str>) -> PaginatedListResult {
        let result = ListResult { common_prefixes: Vec::new(), objects, extensions: Default::default() };
        PaginatedListResult { result, page_token: next.map(str::to_owned) }
    }

    fn added(object: ObjectMeta) -> Result<Option<String>, RequestError> {
        Listing::default().add(page(vec![object], None))
    }

    /// Adds this page until it is refused. Returns how often it was added, and why no more.
    fn refused(objects: &[ObjectMeta]) -> (usize, RequestError) {
        let mut listing = Listing::default();
        let mut pages = 0;
        loop {
            match listing.add(page(objects.to_vec(), Some("next"))) {
                Ok(next) => assert_eq!(next.as_deref(), Some("next")),
                Err(error) => return (pages, error),
            }
            pages += 1;
        }
    }

    #[test]
    fn keys_and_etags_have_a_longest_length() {
        assert_eq!(added(object(&"x".repeat(1024), Some(&"0".repeat(512)))), Ok(None));
        let error = added(object(&"ü".repeat(513), None)).unwrap_err();
        let RequestError::InvalidKey(why) = error else { panic!("{error:?}") };
        assert!(why.len() < 200 && why.contains("more than 1024 bytes begins with \"üü"), "{why}");
        let why = "\"a\" has an ETag of more than 512 bytes".to_owned();
        assert_eq!(added(object("a", Some(&"0".repeat(513)))), Err(RequestError::MalformedAnswer(why)));
    }

    #[test]
    fn objects_pages_and_all_bytes_are_limited() {
        let large = |what: &str| RequestError::LargeListing(what.to_owned());
        assert_eq!(refused(&vec![object("a", None); 1000]), (50, large("more than 50000 objects")));
        assert_eq!(refused(&[]), (999, large("more than 1000 pages of objects")));
        let long = object(&"x".repeat(1024), Some(&"0".repeat(512)));
        let text = large("objects with more than 8 MiB of keys and ETags");
        assert_eq!(refused(&vec![long; 1000]), (5, text));
    }

    #[test]
    fn an_empty_token_ends_the_listing_and_a_long_one_is_no_token() {
        let next = |token: &str| Listing::default().add(page(Vec::new(), Some(token)));
        assert_eq!(next(""), Ok(None));
        let why = "a continuation token of more than 4096 bytes".to_owned();
        assert_eq!(next(&"x".repeat(4097)), Err(RequestError::MalformedAnswer(why)));
    }
}
