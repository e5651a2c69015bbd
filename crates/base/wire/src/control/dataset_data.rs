//! A dataset of the cluster map.

use std::fmt;

use samite_types::{DatasetId, PartitionId};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeTuple as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::DatasetSpec;

/// A dataset as made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetData {
    /// Id; never used again.
    pub id: DatasetId,
    /// Policy.
    pub spec: DatasetSpec,
    /// The cycle of partitions that the chunks of an object go through, fixed when the dataset is made;
    /// empty unless the distribution is weighted.
    pub wheel: Vec<PartitionId>,
    /// Token of the client that has [frozen](crate::freeze) it; 0: none.
    pub frozen_by: u64,
}

/// Beside the permission bits: the token of a freeze follows.
const IS_FROZEN: u16 = 1 << 15;

/// The token is encoded only while there is one: so a dataset that is not frozen has the bytes that
/// builds without freezes read, write and have saved.
impl Serialize for DatasetData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut spec = self.spec.clone();
        let is_frozen = self.frozen_by != 0;
        spec.access.mode |= if is_frozen { IS_FROZEN } else { 0 };
        let mut tuple = serializer.serialize_tuple(3 + usize::from(is_frozen))?;
        tuple.serialize_element(&self.id)?;
        tuple.serialize_element(&spec)?;
        tuple.serialize_element(&self.wheel)?;
        if is_frozen {
            tuple.serialize_element(&self.frozen_by)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for DatasetData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(4, DatasetVisitor)
    }
}

struct DatasetVisitor;

impl<'de> Visitor<'de> for DatasetVisitor {
    type Value = DatasetData;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dataset")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<DatasetData, A::Error> {
        let short = || A::Error::custom("a dataset without all of its fields");
        let id = fields.next_element()?.ok_or_else(short)?;
        let mut spec: DatasetSpec = fields.next_element()?.ok_or_else(short)?;
        let wheel = fields.next_element()?.ok_or_else(short)?;
        let is_frozen = spec.access.mode & IS_FROZEN != 0;
        spec.access.mode &= !IS_FROZEN;
        let frozen_by = if is_frozen { fields.next_element()?.ok_or_else(short)? } else { 0 };
        Ok(DatasetData { id, spec, wheel, frozen_by })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn a_freeze_is_encoded_while_there_is_one() {
        let mut data = DatasetData {
            id: DatasetId(4),
            spec: DatasetSpec::new("d"),
            wheel: vec![PartitionId(6)],
            frozen_by: 0,
        };
        let before = encode(&(data.id, &data.spec, &data.wheel));
        assert_eq!(encode(&data), before);
        assert_eq!(decode::<DatasetData>(&before), Ok(data.clone()));
        data.frozen_by = u64::MAX;
        let two = vec![data.clone(), DatasetData { frozen_by: 0, ..data.clone() }, data];
        let bytes = encode(&two);
        assert_eq!(decode::<Vec<DatasetData>>(&bytes), Ok(two));
        for len in 0..bytes.len() {
            assert!(decode::<Vec<DatasetData>>(&bytes[..len]).is_err(), "{len}");
        }
    }
}
