//! How device plugins and DRA drivers name devices, parsed once into keys that devices are found by. Pure.
//!
//! Ids of any vendor that are the device's own id need no rule here; a rule names only forms that stand for another id.

/// By what a subject is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// The id of the subject: `GPU-…`, `MIG-…`, or another vendor's.
    Id(String),
    /// The number of the device file: `nvidia0`.
    Minor(u32),
    /// A partition by its number on a device: `nvidia0/gi1`.
    Instance { minor: u32, instance: u32 },
    /// A partition by its number on a device with an id: `MIG-GPU-…/1/0`.
    InstanceOf { device: String, instance: u32 },
}

/// Between an id and the number of a share of it, in NVIDIA's device plugin: time-slicing and MPS.
const SHARE: &str = "::";
/// How NVIDIA's library begins the ids of GPUs and of MIG instances. A UUID follows.
const NVIDIA_IDS: [&str; 2] = ["GPU-", "MIG-"];
/// `5a7c0000-0000-0000-0000-000000000000`
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
/// Device plugins and DRA drivers of NVIDIA's devices: under others `nvidia0` and `gpu-0` may mean anything.
const NVIDIA_RESOURCES: [&str; 2] = ["nvidia.com/", "gpu.nvidia.com"];

/// The key of an id under a resource, such as `nvidia.com/gpu` or, for a resource claim, `gpu.nvidia.com`.
pub(crate) fn key(resource: &str, id: &str) -> Key {
    if let Some(device) = without_share(id) {
        return Key::Id(device.to_owned());
    }
    let id = id.split_once(SHARE).map_or(id, |(device, _share)| device);
    if !NVIDIA_RESOURCES.iter().any(|prefix| resource.starts_with(prefix)) {
        return Key::Id(id.to_owned());
    }
    by_device_file(id).or_else(|| by_old_instance(id)).unwrap_or_else(|| Key::Id(id.to_owned()))
}

/// The whole UUID at the beginning of an id. What follows is the number of a share, in the form of each plugin:
/// `GPU-…-0` of HAMi and Volcano, `GPU-…::0` of NVIDIA, `GPU-…-_-0` of Aliyun. HAMi and others choose the name of their
/// resource, so it does not count here.
fn without_share(id: &str) -> Option<&str> {
    let uuid = NVIDIA_IDS.iter().find_map(|prefix| id.strip_prefix(prefix))?;
    let length = UUID_GROUPS.iter().sum::<usize>() + UUID_GROUPS.len() - 1;
    let whole = uuid.get(..length)?;
    let is_uuid = whole.split('-').map(str::len).eq(UUID_GROUPS)
        && whole.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    let goes_on = uuid.as_bytes().get(length).is_some_and(u8::is_ascii_alphanumeric);
    (is_uuid && !goes_on).then(|| &id[..id.len() - uuid.len() + length])
}

/// GKE's `nvidia0`, `nvidia0/gi1`, and either with `/vgpu0`; the DRA driver's `gpu-0`, which has the number of the
/// device file, too. The driver names a MIG instance by its profile and place (`gpu-0-mig-1g10gb-19-0`), which are not
/// read here: such a name leads nowhere.
fn by_device_file(id: &str) -> Option<Key> {
    let mut parts = id.split('/');
    let device = parts.next()?;
    let minor = device.strip_prefix("nvidia").or_else(|| device.strip_prefix("gpu-"))?.parse().ok()?;
    let Some(next) = parts.next() else { return Some(Key::Minor(minor)) };
    match next.strip_prefix("gi") {
        Some(instance) => Some(Key::Instance { minor, instance: instance.parse().ok()? }),
        None => next.starts_with("vgpu").then_some(Key::Minor(minor)),
    }
}

/// Instances as drivers before 470 named them.
fn by_old_instance(id: &str) -> Option<Key> {
    let (device, rest) = id.strip_prefix("MIG-")?.split_once('/')?;
    let (instance, _compute_instance) = rest.split_once('/')?;
    Some(Key::InstanceOf { device: device.to_owned(), instance: instance.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_an_id_leads_to_its_device() {
        let id = |id: &str| Key::Id(id.to_owned());
        for (written, wanted) in [
            ("GPU-5a", id("GPU-5a")),
            ("GPU-5a::3", id("GPU-5a")),
            ("MIG-7c", id("MIG-7c")),
            ("MIG-7c::0", id("MIG-7c")),
            ("nvidia0", Key::Minor(0)),
            ("nvidia12/vgpu3", Key::Minor(12)),
            ("nvidia0/gi1", Key::Instance { minor: 0, instance: 1 }),
            ("nvidia0/gi1/vgpu0", Key::Instance { minor: 0, instance: 1 }),
            ("MIG-GPU-5a/9/0", Key::InstanceOf { device: "GPU-5a".to_owned(), instance: 9 }),
            ("nvidia", id("nvidia")),
            ("nvidia0/other", id("nvidia0/other")),
            ("", id("")),
        ] {
            assert_eq!(key("nvidia.com/gpu", written), wanted, "{written}");
        }
        assert_eq!(key("gpu.nvidia.com", "gpu-2"), Key::Minor(2));
    }

    #[test]
    fn a_share_of_any_plugin_leads_to_its_device_under_any_resource() {
        const UUID: &str = "5a7c3b10-0d1e-4f2a-9b3c-00aabbccddee";
        for prefix in NVIDIA_IDS {
            let device = format!("{prefix}{UUID}");
            for share in ["", "-0", "-12", "::0", "::12", "-_-3", "[0-1]"] {
                for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "volcano.sh/vgpu-number", "vgpu"]
                {
                    let written = format!("{device}{share}");
                    assert_eq!(key(resource, &written), Key::Id(device.clone()), "{resource} {written}");
                }
            }
        }
        let instance = format!("MIG-GPU-{UUID}/9/0");
        let wanted = Key::InstanceOf { device: format!("GPU-{UUID}"), instance: 9 };
        assert_eq!(key("nvidia.com/mig-1g.10gb", &instance), wanted);
        for other in [format!("GPU-{UUID}0"), format!("GPU-x{}", &UUID[1..]), "GPU-5a-0".to_owned()] {
            assert_eq!(key("nvidia.com/gpu", &other), Key::Id(other.clone()), "no share of a UUID");
        }
    }

    #[test]
    fn instances_of_claims_lead_nowhere_rather_than_to_the_whole_gpu() {
        for name in ["gpu-0-mig-1g10gb-19-0", "gpu-1-mig-9-4-4", "gpu-vfio-0"] {
            assert_eq!(key("gpu.nvidia.com", name), Key::Id(name.to_owned()));
        }
    }

    #[test]
    fn forms_of_one_vendor_mean_nothing_under_the_resource_of_another() {
        assert_eq!(key("huawei.com/Ascend910", "nvidia0"), Key::Id("nvidia0".to_owned()));
        assert_eq!(key("huawei.com/Ascend910", "Ascend910-3"), Key::Id("Ascend910-3".to_owned()));
    }
}
