//! Determines the URL of a bucket, in the addressing style of the endpoint, and that of the token service of a region.
//! Pure.

use std::net::IpAddr;

use api::aiinference::Addressing;

/// The URL of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// In the form that object_store expects: with the bucket where the style is virtual-hosted, without it otherwise. No slash at
    /// the end.
    pub(crate) url: String,
    pub(crate) is_virtual_hosted: bool,
}

/// An endpoint that does not support the addressing style.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint} is an address, and virtual-hosted addressing needs a host name: use addressing Path")]
pub(crate) struct InvalidEndpoint {
    endpoint: String,
}

/// `endpoint`: that of the store, without the bucket; AWS S3 in the region if there is none.
pub(crate) fn endpoint(
    bucket: &str,
    region: &str,
    endpoint: Option<&str>,
    addressing: Addressing,
) -> Result<Endpoint, InvalidEndpoint> {
    let endpoint = match endpoint {
        Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
        None => format!("https://s3.{region}.{}", aws_domain(region)),
    };
    let (before, host, after) = split(&endpoint);
    let of_bucket = host.strip_prefix(bucket).and_then(|rest| rest.strip_prefix('.'));
    let names_bucket = of_bucket.is_some_and(needs_virtual_hosts);
    let is_virtual_hosted = match addressing {
        Addressing::Path => false,
        Addressing::VirtualHosted => true,
        Addressing::Auto => (needs_virtual_hosts(host) || names_bucket) && is_label(bucket),
    };
    if is_virtual_hosted && is_address(host) {
        return Err(InvalidEndpoint { endpoint: without_password(&endpoint) });
    }
    // Some tools expect the bucket in the endpoint, and users copy it from there.
    let is_complete = !is_virtual_hosted || names_bucket;
    let url = if is_complete { endpoint } else { format!("{before}{bucket}.{host}{after}") };
    Ok(Endpoint { url, is_virtual_hosted })
}

/// The token service of a region of AWS, which returns keys for a pod's identity.
pub(crate) fn token_service(region: &str) -> String {
    format!("https://sts.{region}.{}", aws_domain(region))
}

/// The regions of China have a domain of their own.
fn aws_domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

/// AWS S3, Alibaba Cloud OSS and Tencent Cloud COS by the hosts that they document. The last two refuse path-style
/// requests. The interface endpoints of AWS (`vpce`) accept only path-style requests.
fn needs_virtual_hosts(host: &str) -> bool {
    let below = |domain: &str| host.strip_suffix(domain).and_then(|rest| rest.strip_suffix('.'));
    let aws = ["amazonaws.com", "amazonaws.com.cn"].into_iter().find_map(below);
    let oss = below("aliyuncs.com");
    let cos = ["myqcloud.com", "tencentcos.cn"].into_iter().find_map(below);
    let is_s3 = |name: &str| name == "s3" || name.starts_with("s3.") || name.starts_with("s3-");
    aws.is_some_and(|name| is_s3(name) && !name.ends_with(".vpce"))
        || oss.is_some_and(|name| {
            let name = name.strip_prefix("s3.").unwrap_or(name);
            name.starts_with("oss-") || name.ends_with(".oss") || name.contains(".oss-")
        })
        || cos.is_some_and(|name| name.starts_with("cos.") || name.starts_with("cos-internal."))
}

/// The text before the host, the host, and the text after it.
fn split(endpoint: &str) -> (&str, &str, &str) {
    let authority = endpoint.find("://").map_or(0, |scheme| scheme + "://".len());
    let end = endpoint[authority..].find(['/', '?', '#']).map_or(endpoint.len(), |path| authority + path);
    let host = endpoint[authority..end].rfind('@').map_or(authority, |user| authority + user + 1);
    let port = match endpoint[host..end].find(']') {
        Some(bracket) => host + bracket + 1,
        None => endpoint[host..end].rfind(':').map_or(end, |colon| host + colon),
    };
    (&endpoint[..host], &endpoint[host..port], &endpoint[port..])
}

/// Whether a bucket can be the first label of a host. Older buckets have upper case letters, which a host does not keep, or
/// dots, which the certificate of `*.endpoint` does not cover.
fn is_label(bucket: &str) -> bool {
    bucket.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-')
}

fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

/// The endpoint for messages, without the user of `http://user:password@host`.
pub fn without_password(endpoint: &str) -> String {
    match (endpoint.split_once("://"), endpoint.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(bucket: &str, at: Option<&str>, addressing: Addressing) -> String {
        endpoint(bucket, "eu-west-1", at, addressing).unwrap().url
    }

    #[test]
    fn auto_names_the_bucket_in_the_host_where_the_endpoint_is_known_to_need_it() {
        for (at, expected) in [
            ("https://oss-cn-hangzhou.aliyuncs.com", "https://models.oss-cn-hangzhou.aliyuncs.com"),
            (
                "https://oss-cn-hangzhou-internal.aliyuncs.com/",
                "https://models.oss-cn-hangzhou-internal.aliyuncs.com",
            ),
            ("https://s3.oss-cn-beijing.aliyuncs.com", "https://models.s3.oss-cn-beijing.aliyuncs.com"),
            ("https://cos.ap-guangzhou.myqcloud.com", "https://models.cos.ap-guangzhou.myqcloud.com"),
            (
                "https://cos-internal.ap-guangzhou.tencentcos.cn",
                "https://models.cos-internal.ap-guangzhou.tencentcos.cn",
            ),
            ("https://s3.eu-west-1.amazonaws.com", "https://models.s3.eu-west-1.amazonaws.com"),
            ("https://s3-accelerate.amazonaws.com", "https://models.s3-accelerate.amazonaws.com"),
            ("https://s3.cn-north-1.amazonaws.com.cn", "https://models.s3.cn-north-1.amazonaws.com.cn"),
        ] {
            assert_eq!(url("models", Some(at), Addressing::Auto), expected);
            let named = expected.trim_end_matches('/');
            assert_eq!(url("models", Some(named), Addressing::Auto), expected, "the bucket is named already");
        }
    }

    #[test]
    fn auto_names_the_bucket_in_the_path_everywhere_else() {
        for at in [
            "http://minio:9000",
            "http://10.0.0.1:9000",
            "http://[::1]:9000",
            "https://storage.example/s3",
            "https://oss.example.com",
            "https://notamazonaws.com",
            "https://s3.amazonaws.com.example.com",
            "https://bucket.vpce-1a2b-3c4d.s3.eu-west-1.vpce.amazonaws.com",
            "https://account.r2.cloudflarestorage.com",
        ] {
            assert_eq!(url("models", Some(at), Addressing::Auto), at);
        }
        for bucket in ["my.models", "My-Models", "my_models"] {
            let aws = endpoint(bucket, "eu-west-1", None, Addressing::Auto).unwrap();
            assert!(!aws.is_virtual_hosted, "{bucket}");
        }
    }

    #[test]
    fn the_addressing_style_of_the_user_is_used() {
        let minio = "http://user:p@ss@minio.example:9000/s3";
        assert_eq!(
            url("models", Some(minio), Addressing::VirtualHosted),
            "http://user:p@ss@models.minio.example:9000/s3"
        );
        assert_eq!(url("models", Some(minio), Addressing::Path), minio);
        let oss = "https://oss-cn-hangzhou.aliyuncs.com";
        assert_eq!(url("models", Some(oss), Addressing::Path), oss);
        for address in ["http://10.0.0.1:9000", "http://[::1]:9000"] {
            let refused = endpoint("models", "", Some(address), Addressing::VirtualHosted).unwrap_err();
            assert!(refused.to_string().starts_with(address), "{refused}");
        }
    }

    #[test]
    fn aws_is_the_endpoint_of_the_region_and_china_has_a_domain_of_its_own() {
        let of = |region| endpoint("models", region, None, Addressing::Auto).unwrap().url;
        assert_eq!(of("eu-west-1"), "https://models.s3.eu-west-1.amazonaws.com");
        assert_eq!(of("cn-north-1"), "https://models.s3.cn-north-1.amazonaws.com.cn");
        assert_eq!(token_service("eu-west-1"), "https://sts.eu-west-1.amazonaws.com");
        assert_eq!(token_service("cn-northwest-1"), "https://sts.cn-northwest-1.amazonaws.com.cn");
    }

    #[test]
    fn a_password_in_an_endpoint_is_not_repeated() {
        assert_eq!(without_password("http://user:p@ss@minio:9000"), "http://minio:9000");
        assert_eq!(without_password("http://minio:9000"), "http://minio:9000");
    }
}
