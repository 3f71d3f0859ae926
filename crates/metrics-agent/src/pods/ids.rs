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

/// Between an id and the number of a share of it, in NVIDIA's device plugin.
const SHARE: &str = "::";
/// Device plugins and DRA drivers of NVIDIA's devices: under others `nvidia0` and `gpu-0` may mean anything.
const NVIDIA_RESOURCES: [&str; 2] = ["nvidia.com/", "gpu.nvidia.com"];

/// The key of an id under a resource, such as `nvidia.com/gpu` or, for a resource claim, `gpu.nvidia.com`.
pub(crate) fn key(resource: &str, id: &str) -> Key {
    let id = id.split_once(SHARE).map_or(id, |(device, _share)| device);
    if !NVIDIA_RESOURCES.iter().any(|prefix| resource.starts_with(prefix)) {
        return Key::Id(id.to_owned());
    }
    by_device_file(id).or_else(|| by_old_instance(id)).unwrap_or_else(|| Key::Id(id.to_owned()))
}

/// GKE's `nvidia0`, `nvidia0/gi1`, and either with `/vgpu0`; the DRA driver's `gpu-0`.
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
    fn forms_of_one_vendor_mean_nothing_under_the_resource_of_another() {
        assert_eq!(key("huawei.com/Ascend910", "nvidia0"), Key::Id("nvidia0".to_owned()));
        assert_eq!(key("huawei.com/Ascend910", "Ascend910-3"), Key::Id("Ascend910-3".to_owned()));
    }
}
