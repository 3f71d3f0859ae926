//! Parses the API server's message about an exceeded ResourceQuota. Pure.

/// For each limited resource: the amounts requested, used and allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded<'a>(Vec<(&'a str, [i64; 3])>);

impl<'a> Exceeded<'a> {
    /// `… exceeded quota: gpus, requested: pods=1, used: pods=4, limited: pods=4`
    pub fn parse(message: &'a str) -> Option<Self> {
        let (_, quota) = message.split_once("exceeded quota: ")?;
        let amounts = |label: &str| -> Option<Vec<(&str, i64)>> {
            let (_, rest) = quota.split_once(label)?;
            let end = [", used: ", ", limited: "].iter().filter_map(|next| rest.find(next)).min();
            let list = rest.get(..end.unwrap_or(rest.len()))?;
            let pairs = list.split(',').map(|pair| pair.trim().split_once('='));
            pairs
                .map(|pair| pair.and_then(|(name, amount)| Some((name, text::quantity::whole(amount)?))))
                .collect()
        };
        let (used, limited) = (amounts("used: ")?, amounts("limited: ")?);
        let of = |list: &[(&str, i64)], name| list.iter().find(|(known, _)| *known == name).map(|(_, v)| *v);
        let all = amounts("requested: ")?.into_iter();
        let all = all.map(|(name, wanted)| Some((name, [wanted, of(&used, name)?, of(&limited, name)?])));
        all.collect::<Option<_>>().map(Self)
    }

    /// Whether the request would fit the quota after `given_back` of each resource is released.
    pub fn would_fit(&self, given_back: impl Fn(&str) -> i64) -> bool {
        self.0.iter().all(|(name, [wanted, used, limit])| {
            used - given_back(name.strip_prefix("requests.").unwrap_or(name)) + wanted <= *limit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_fits_if_every_resource_of_the_quota_has_room() {
        let message = "pods \"a\" is forbidden: exceeded quota: team, requested: pods=1,requests.nvidia.com/gpu=2, \
                       used: pods=3,requests.nvidia.com/gpu=4, limited: pods=4,requests.nvidia.com/gpu=4";
        let exceeded = Exceeded::parse(message).unwrap();
        assert!(exceeded.would_fit(|name| if name == "nvidia.com/gpu" { 2 } else { 0 }));
        assert!(!exceeded.would_fit(|name| if name == "nvidia.com/gpu" { 1 } else { 9 }));
        for other in
            ["denied by a webhook", "exceeded quota: a, requested: pods=1, used: pods=x, limited: pods=1"]
        {
            assert_eq!(Exceeded::parse(other), None);
        }
    }
}
