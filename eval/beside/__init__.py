"""Looking up beside a draft: what it would do on recorded texts, and the policy that does best."""
