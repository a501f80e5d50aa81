"""What a draft is, and how a target's weights become one. Never imports Composer."""
