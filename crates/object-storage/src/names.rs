//! Listings of names, page by page, for programs with little memory.
//!
//! A page is bounded before it is parsed: its bytes, and its entries. An entry that is no name is left out, so that one odd
//! object does not hide all others.

use object_store::{
    ListResult,
    list::{PaginatedListOptions, PaginatedListStore as _},
};

use crate::Bucket;

/// Names that a page is asked for.
pub const PAGE: usize = 100;
/// Limit for the text that requests the next page, which becomes part of an address. Stores derive it from a key.
const LONGEST_TOKEN: usize = 4096;
/// Of an odd name, for messages.
const SHOWN: usize = 64;

/// An extension of the request for a page. `is_name` decides about the last part of a key.
#[derive(Clone, Copy, Debug)]
pub struct OnlyNames {
    pub is_name: fn(&str) -> bool,
}

/// An extension of the answer: the first entry that was left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Skipped(Option<String>);

/// A page of a listing.
#[derive(Debug)]
pub struct Names {
    pub found: ListResult,
    /// What requests the next page.
    pub next: Option<String>,
    /// The first entry that is no name.
    pub odd: Option<String>,
}

impl Bucket {
    /// What is directly below the prefix, which ends with a slash.
    pub async fn names(
        &self,
        prefix: &str,
        token: Option<String>,
        wanted: OnlyNames,
    ) -> object_store::Result<Names> {
        self.page(prefix, token, wanted, Some("/".into())).await
    }

    /// All objects below the prefix, which ends with a slash.
    pub async fn names_of_all(
        &self,
        prefix: &str,
        token: Option<String>,
        wanted: OnlyNames,
    ) -> object_store::Result<Names> {
        self.page(prefix, token, wanted, None).await
    }

    async fn page(
        &self,
        prefix: &str,
        token: Option<String>,
        wanted: OnlyNames,
        delimiter: Option<std::borrow::Cow<'static, str>>,
    ) -> object_store::Result<Names> {
        let mut extensions = ::http::Extensions::new();
        extensions.insert(wanted);
        let options = PaginatedListOptions {
            delimiter,
            max_keys: Some(PAGE),
            page_token: token,
            extensions,
            ..PaginatedListOptions::default()
        };
        let page = self.s3.list_paginated(Some(prefix), options).await?;
        let skipped = page.result.extensions.get::<Skipped>().cloned().unwrap_or_default();
        let next = page.page_token.filter(|token| !token.is_empty());
        if next.as_ref().is_some_and(|token| token.len() > LONGEST_TOKEN) {
            let source = format!("a continuation token of more than {LONGEST_TOKEN} bytes").into();
            return Err(object_store::Error::Generic { store: "S3", source });
        }
        Ok(Names { found: page.result, next, odd: skipped.0 })
    }
}

/// More entries than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of the listing has more than the {0} names that were asked for")]
pub(crate) struct ManyNames(pub(crate) usize);

impl OnlyNames {
    /// The page without the entries that are no names. Entries are found by their tags, which S3 writes without attributes.
    pub(crate) fn kept(self, page: &str) -> Result<(String, Skipped), ManyNames> {
        let (mut kept, mut skipped, mut entries) = (String::with_capacity(page.len()), None, 0_usize);
        let mut rest = page;
        while let Some((before, entry, after)) = next_entry(rest) {
            kept.push_str(before);
            entries += 1;
            if entries > PAGE {
                return Err(ManyNames(PAGE));
            }
            match key_of(entry) {
                // An object that stands for the folder itself.
                Some(key) if is_marker(entry, key) => {}
                Some(key) if self.is_kept(key) => kept.push_str(entry),
                key => {
                    let key = key.unwrap_or_default();
                    skipped.get_or_insert_with(|| key[..key.floor_char_boundary(SHOWN)].to_owned());
                }
            }
            rest = after;
        }
        kept.push_str(rest);
        Ok((kept, Skipped(skipped)))
    }

    /// A name is the last part of a key without empty parts.
    fn is_kept(self, key: &str) -> bool {
        // What the parser of the page refuses, or the one of keys, would hide the whole page.
        let Some(key) = unescaped(key) else { return false };
        let key = key.strip_suffix('/').unwrap_or(&key);
        let is_part =
            |part: &str| !matches!(part, "" | "." | "..") && !part.contains(|c: char| c.is_ascii_control());
        key.split('/').all(is_part) && key.rsplit('/').next().is_some_and(|name| (self.is_name)(name))
    }
}

/// The text before the next entry of a listing, the entry, and what follows.
fn next_entry(page: &str) -> Option<(&str, &str, &str)> {
    const TAGS: [(&str, &str); 2] =
        [("<Contents>", "</Contents>"), ("<CommonPrefixes>", "</CommonPrefixes>")];
    let begins = TAGS.iter().filter_map(|(begin, end)| Some((page.find(begin)?, *end)));
    let (begin, tag) = begins.min_by_key(|(begin, _)| *begin)?;
    let end = begin + page[begin..].find(tag)? + tag.len();
    Some((&page[..begin], &page[begin..end], &page[end..]))
}

fn key_of(entry: &str) -> Option<&str> {
    let content = |tag: &str| {
        let (_, rest) = entry.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(content, _)| content)
    };
    content("Key").or_else(|| content("Prefix"))
}

/// The text of an element, of which stores escape different characters. `None`: it is not well-formed.
fn unescaped(text: &str) -> Option<String> {
    let mut pieces = text.split('&');
    let mut plain = pieces.next()?.to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once(';')?;
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "apos" => '\'',
            "quot" => '"',
            name => numbered(name.strip_prefix('#')?)?,
        });
        plain.push_str(rest);
    }
    Some(plain)
}

/// The character of a number, in decimal or after an `x` in hexadecimal digits.
fn numbered(number: &str) -> Option<char> {
    let (digits, radix) = number.strip_prefix('x').map_or((number, 10), |digits| (digits, 16));
    // A sign is none.
    let code = u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
    char::from_u32(code).filter(|char| *char != '\0')
}

fn is_marker(entry: &str, key: &str) -> bool {
    entry.starts_with("<Contents>") && key.ends_with('/') && !key.ends_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: OnlyNames = OnlyNames { is_name: |name| name.len() < 10 };

    fn object(key: &str) -> String {
        format!("<Contents><Key>{key}</Key><Size>0</Size></Contents>")
    }

    fn folder(key: &str) -> String {
        format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>")
    }

    fn page(entries: &[String]) -> String {
        format!(
            "<ListBucketResult><Prefix>p/</Prefix>{}<KeyCount>9</KeyCount></ListBucketResult>",
            entries.concat()
        )
    }

    #[test]
    fn an_odd_entry_is_left_out_and_the_others_stay() {
        for odd in [
            object("p//x"),
            folder("p//"),
            folder("p/../"),
            object("p/a&#x1;"),
            object("p/longer-than-is-a-name"),
            "<Contents></Contents>".to_owned(),
        ] {
            let all = [object("p/a"), odd.clone(), folder("p/b/")];
            let (kept, skipped) = WANTED.kept(&page(&all)).unwrap();
            assert_eq!(kept, page(&[object("p/a"), folder("p/b/")]), "{odd}");
            assert!(skipped.0.is_some(), "{odd}");
        }
        let (kept, skipped) = WANTED.kept(&page(&[object("p/"), object("p/a")])).unwrap();
        assert_eq!((kept, skipped.0), (page(&[object("p/a")]), None), "the folder itself");
    }

    /// Stores whose XML comes from Go escape quotes by their numbers.
    #[test]
    fn escaped_characters_of_a_prefix_hide_no_name() {
        for prefix in ["it&#39;s", "&#34;x&#x22;", "a&amp;b&lt;c&gt;&apos;&quot;", "&#xE9;", "é"] {
            let all = [object(&format!("{prefix}/a")), folder(&format!("{prefix}/b/"))];
            let (kept, skipped) = WANTED.kept(&page(&all)).unwrap();
            assert_eq!((kept, skipped.0), (page(&all), None), "{prefix}");
        }
        for odd in ["&#0;", "&#x1;", "&#xD800;", "&#x110000;", "&#;", "&#39", "&nbsp;", "&;", "&"] {
            let all = [object("p/a"), object(&format!("p{odd}/b"))];
            let (kept, skipped) = WANTED.kept(&page(&all)).unwrap();
            assert_eq!((kept, skipped.0.is_some()), (page(&all[..1]), true), "{odd}");
        }
    }

    #[test]
    fn a_page_with_more_entries_than_were_asked_for_is_refused() {
        let all: Vec<String> = (0..=PAGE).map(|number| object(&format!("p/{number}"))).collect();
        assert!(WANTED.kept(&page(&all[1..])).is_ok());
        assert_eq!(WANTED.kept(&page(&all)).unwrap_err(), ManyNames(PAGE));
    }

    #[test]
    fn an_entry_that_does_not_end_is_left_to_the_parser() {
        let cut = "<ListBucketResult><Contents><Key>p/a</Key>";
        assert_eq!(WANTED.kept(cut).unwrap().0, cut);
    }
}
