//! The RedisCluster operator
